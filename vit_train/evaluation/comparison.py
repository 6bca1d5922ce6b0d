"""`vit-eval ckpt=[A,B]`: several checkpoints on the same images, compared pair by pair."""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vit_train.base.text import counted, csv_text, file_name, printable
from vit_train.base.writing import require_own_folder, write_json, write_text
from vit_train.engine.metrics import Answers, Classification, Integers, Paired
from vit_train.evaluation.evaluate import Evaluated, display_name, evaluate_loaded, load_for
from vit_train.evaluation.findings import Findings
from vit_train.evaluation.pages import comparison_page
from vit_train.figures.charts import Figure, save
from vit_train.figures.measures import result_dict
from vit_train.figures.sheet import RIGHT, WRONG, Labeled, class_line, draw_sheet
from vit_train.results.summaries import settings_of
from vit_train.runs.paths import CHECKPOINTS
from vit_train.runs.settings import EvalConfig
from vit_train.runs.trained import Meta

logger = logging.getLogger(__name__)

# Images in each section of the sheet.
COUNT = 12


@dataclass(frozen=True)
class Pair:
    """Two of the compared classifiers, by their names, and how they differ."""

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
    """Draw uint8 images (N,3,S,S) that only one gets right, with both predictions.

    The names begin with the letters that stand for the two below the images.
    """

    def line(name: str, answers: Answers, index: int) -> tuple[str, str]:
        color = RIGHT if answers.correct[index] else WRONG
        predicted = classes[answers.predicted[index]]
        return class_line(name[0], predicted, answers.confidence[index], color)

    sections = {}
    for number, name in enumerate(names):
        chosen = where_they_differ(pair[number], pair[1 - number], COUNT)
        sections[f"Only {printable(name)} is right"] = [
            Labeled(images[index], [line(*each, index) for each in zip(names, pair, strict=True)])
            for index in chosen.tolist()
        ]
    return draw_sheet(sections)


def differences(
    all_answers: Sequence[Answers],
    letters: Sequence[str],
    names: Sequence[object],
    classes: Sequence[str],
) -> Iterator[list[str]]:
    """Yield the rows of a table: a header, then the images on which the predictions differ."""
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


def compare_checkpoints(config: EvalConfig) -> None:
    """Evaluate each checkpoint, and write their differences into a folder beside the first's.

    Raise ValueError for tasks that do not classify, and if the images are not the same.
    """
    models = [load_for(config, each) for each in config.ckpt]
    require_comparable([trained.meta for trained in models])
    runs = [
        evaluate_loaded(trained, replace(config, out=config.out and f"{config.out}/{letter}"))
        for letter, trained in zip(ascii_uppercase, models, strict=False)
    ]
    require_same_images([run.found for run in runs])
    places = distinct([display_name(run.meta.path) for run in runs])
    folder = Path(config.out) if config.out else comparison_folder(runs, places)
    require_own_folder(folder)
    folder.mkdir(exist_ok=True)
    names = [f"{letter} ({place})" for letter, place in zip(ascii_uppercase, places, strict=False)]
    answers = [answers_of(run.found) for run in runs]
    places_of_pairs = list(combinations(range(len(runs)), 2))
    compared = [Paired.of(answers[i], answers[j]) for i, j in places_of_pairs]
    p_values = adjusted([paired.p_value for paired in compared])
    pairs, pictures, first = [], {}, runs[0].found
    for (i, j), paired, p in zip(places_of_pairs, compared, p_values, strict=True):
        pairs.append(Pair(names[i], names[j], paired, p))
        logger.info(pairs[-1].in_words)
        file = folder / f"{ascii_uppercase[i]}-{ascii_uppercase[j]}.png"
        both = (answers[i], answers[j]), (names[i], names[j])
        save(draw_differences(*both, first.images, first.classes), file)
        pictures[f"{names[i]} and {names[j]}"] = file.read_bytes()
    caveats = zip(names, (run.found.caveat for run in runs), strict=True)
    warnings = [f"{name}: {caveat}" for name, caveat in caveats if caveat]
    for line in warnings:
        logger.warning(line)
    write(folder, names, runs, pairs, pictures, warnings)


def write(
    folder: Path,
    names: Sequence[str],
    runs: Sequence[Evaluated],
    pairs: Sequence[Pair],
    pictures: dict[str, bytes],
    warnings: Sequence[str],
) -> None:
    """Write the numbers, the images on which the predictions differ, and the page."""
    first = runs[0].found
    content = {
        "models": [
            {"name": name, **run.found.facts, "result": result_dict(run.found.result)}
            for name, run in zip(names, runs, strict=True)
        ],
        "pairs": [pair.as_dict() for pair in pairs],
    }
    write_json(folder / "results.json", content)
    letters = ascii_uppercase[: len(runs)]
    answers = [answers_of(run.found) for run in runs]
    table = differences(answers, letters, first.names, first.classes)
    write_text(folder / "differences.csv", csv_text(table))
    page = comparison_page(
        names,
        [run.found for run in runs],
        [*(pair.in_words for pair in pairs), *warnings],
        different_settings(runs),
        pictures,
    )
    write_text(folder / "report.html", page)
    logger.info(f"written to {folder}/: results.json, differences.csv, report.html, pictures")


def answers_of(found: Findings) -> Answers:
    assert isinstance(found.result, Classification)
    return found.result.answers


def require_comparable(metas: Sequence[Meta]) -> None:
    """Raise ValueError, before anything is evaluated, if these models cannot be compared."""
    if not all(meta.task.needs_labels for meta in metas):
        raise ValueError("ckpt=[A,B] compares classifiers")
    paths = [meta.path.resolve() for meta in metas]
    for meta, path in zip(metas, paths, strict=True):
        if paths.count(path) > 1:
            raise ValueError(f"ckpt= names {meta.path} more than once")
    for meta in metas[1:]:
        if meta.classes != metas[0].classes:
            raise ValueError(f"{metas[0].path} and {meta.path} know different classes")


def require_same_images(found: Sequence[Findings]) -> None:
    first, *others = found
    labels = answers_of(first).labels.tolist()
    for other in others:
        same = (
            other.facts["data"] == first.facts["data"]
            and list(other.classes) == list(first.classes)
            and list(other.names) == list(first.names)
            and answers_of(other).labels.tolist() == labels
        )
        # Of different sizes, from the same place.
        if same and first.images.shape == other.images.shape:
            same = torch.equal(first.images, other.images)
        elif same:
            same = first.facts["root"] == other.facts["root"]
        if not same:
            raise ValueError(
                f"{first.facts['checkpoint']} and {other.facts['checkpoint']} were evaluated on "
                "different images: name the same ones, for example by data.name= and data.root="
            )


def distinct(checkpoints: Sequence[str]) -> list[str]:
    """Return the checkpoints without the parts of their paths that all of them have."""
    parts = [
        [part for part in Path(each).with_suffix("").parts if part != CHECKPOINTS]
        for each in checkpoints
    ]
    for end in (0, -1):
        while min(map(len, parts)) > 1 and len({each[end] for each in parts}) == 1:
            for each in parts:
                each.pop(end)
    return ["/".join(each) for each in parts]


def comparison_folder(runs: Sequence[Evaluated], places: Sequence[str]) -> Path:
    """Return a folder beside the first evaluation's, with a name of its own for these runs."""
    first = runs[0]
    paths = b"\n".join(bytes(run.meta.path.resolve()) for run in runs)
    mark = hashlib.sha256(paths).hexdigest()[:6]
    against = file_name("-".join(places[1:]).replace("/", "-"))
    return first.folder.with_name(f"{first.folder.name}-vs-{against}-{mark}")


def different_settings(runs: Sequence[Evaluated]) -> list[tuple[str, ...]]:
    """Return the training settings that differ between the runs: key, value of each."""
    flat = [settings_of({"config": asdict(run.meta.config)}) for run in runs]
    keys = dict.fromkeys(key for each in flat for key in each)
    rows = [(key, *(str(each.get(key, "")) for each in flat)) for key in keys]
    return [row for row in rows if len(set(row[1:])) > 1]
