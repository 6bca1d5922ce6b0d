"""Classifiers on the same images: whether one is better, and on which images they differ."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from torch import Tensor

from vit_train.engine.metrics import Answers, Integers, Paired
from vit_train.figures.charts import Figure
from vit_train.figures.sheet import RIGHT, WRONG, Labelled, class_line, draw_sheet
from vit_train.files.text import counted, printable

# Images in each section of the sheet.
COUNT = 12


@dataclass(frozen=True)
class Pair:
    """Two of the compared classifiers, by their names."""

    first: str
    second: str
    paired: Paired
    # The p-value, adjusted for the number of pairs that are compared.
    p_adjusted: float

    @property
    def in_words(self) -> str:
        paired = self.paired
        low, high = (100 * end for end in paired.interval)
        chance = in_figures(paired.p_value)
        if self.p_adjusted != paired.p_value:
            chance += f", {in_figures(self.p_adjusted)} when adjusted for all pairs"
        certain = self.p_adjusted < 0.05
        verdict = "They differ by more than chance." if certain else "That may be chance."
        return (
            f"Only {self.first} is right on {counted(paired.only_first, 'image')}, only "
            f"{self.second} on {paired.only_second:,}: a difference of "
            f"{100 * paired.difference:+.2f} points (95 % interval {low:+.2f} to {high:+.2f}; "
            f"McNemar's exact test: {chance}). {verdict}"
        )

    def as_dict(self) -> dict[str, Any]:
        paired = self.paired
        return {
            "first": self.first,
            "second": self.second,
            **asdict(paired),
            "difference": paired.difference,
            "interval_95": list(paired.interval),
            "mcnemar_p": paired.p_value,
            "mcnemar_p_adjusted": self.p_adjusted,
        }


def in_figures(p: float) -> str:
    return f"p = {p:.2g}" if p >= 1e-4 else "p < 0.0001"


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Return p-values that hold for all of the tests together (Holm 1979)."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    result, least = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        result[place] = least
    return result


def where_they_differ(right: Answers, wrong: Answers, count: int) -> Integers:
    """Return images on which only `right` is right, those of the highest loss of `wrong` first."""
    order: Integers = np.argsort(-wrong.losses, kind="stable")
    return order[(right.correct & ~wrong.correct)[order]][:count]


def draw_differences(
    pair: tuple[Answers, Answers], names: tuple[str, str], images: Tensor, classes: Sequence[str]
) -> Figure:
    """Draw uint8 images (N,3,S,S) that only one gets right, with what both predict.

    The names begin with the letters that stand for the two below the images.
    """
    sections, letters = {}, [name[0] for name in names]
    for number, name in enumerate(names):
        chosen = where_they_differ(pair[number], pair[1 - number], COUNT)
        sections[f"Only {printable(name)} is right"] = [
            Labelled(images[index], lines(pair, letters, index, classes))
            for index in chosen.tolist()
        ]
    return draw_sheet(sections)


def lines(
    pair: Sequence[Answers], letters: Sequence[str], index: int, classes: Sequence[str]
) -> list[tuple[str, str]]:
    """Return what each of the classifiers predicts for an image."""
    lines = []
    for letter, answers in zip(letters, pair, strict=True):
        predicted = int(answers.predicted[index])
        color = RIGHT if answers.correct[index] else WRONG
        lines.append(class_line(letter, classes[predicted], answers.confidence[index], color))
    return lines


def differences(
    all_answers: Sequence[Answers],
    letters: Sequence[str],
    names: Sequence[object],
    classes: Sequence[str],
) -> Iterator[list[str]]:
    """Yield the rows of a table: a header, then the images on which not all say the same."""
    named = [printable(name) for name in classes]
    header = ["image", "true"]
    for letter in letters:
        header += [f"predicted_{letter}", f"probability_{letter}"]
    yield header
    predicted = np.stack([answers.predicted for answers in all_answers])  # (models, N)
    labels = all_answers[0].labels
    for index in np.flatnonzero((predicted != predicted[0]).any(axis=0)).tolist():
        row = [printable(str(names[index])), named[labels[index]]]
        for answers in all_answers:
            row += [named[answers.predicted[index]], f"{answers.confidence[index]:.6f}"]
        yield row
