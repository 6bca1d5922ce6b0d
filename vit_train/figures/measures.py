"""Measures of a classifier: their numbers, their figures and their text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vit_train.base.text import CLASS_NAME, counted, shortened
from vit_train.engine.metrics import Answers, Classification, Evaluation, Floats
from vit_train.figures.charts import Figure, colormaps
from vit_train.figures.confidence import Calibration, Coverage
from vit_train.figures.sheet import draw_mistakes

MOST_NAMED = 20  # With more classes, names and numbers would be too small to read.
MOST_CELLS = 1000  # The drawing has no more pixels in a row.
NO_IMAGES = "#ececec"  # The color of a true class without images: no shares, not shares of 0.


class Confusion:
    """How often each class was taken for each class."""

    def values(self, answers: Answers) -> dict[str, float]:
        """Return no number: the result itself has the balanced accuracy."""
        return {}

    def draw(self, answers: Answers, classes: Sequence[str]) -> Figure:
        """Draw the share of each true class (row) that was taken for each class (column)."""
        together = -(-len(classes) // MOST_CELLS)
        matrix = confusion_matrix(answers, together)
        images = matrix.sum(axis=1, keepdims=True)
        shares = 100 * matrix / np.maximum(1, images)
        named = len(classes) <= MOST_NAMED
        side = 2.2 + 0.48 * len(classes) if named else 9
        figure = Figure(figsize=(side + 0.6, side), dpi=100, layout="constrained")
        axes = figure.subplots()
        end = together * len(matrix) - 0.5
        extent = (-0.5, end, end, -0.5)
        known = np.ma.masked_where(np.broadcast_to(images == 0, shares.shape), shares)
        colors = colormaps["Blues"].with_extremes(bad=NO_IMAGES)
        image = axes.imshow(known, cmap=colors, vmin=0, vmax=100, extent=extent)
        axes.set(xlabel="predicted", ylabel="true", title="share of each true class, %")
        axes.set_aspect("equal")
        figure.colorbar(image, ax=axes, shrink=0.8)
        if named:
            names = [shortened(name) for name in classes]
            places = range(len(names))
            axes.set_xticks(places, names, rotation=60, ha="right", parse_math=False)
            axes.set_yticks(places, names, parse_math=False)
            for (row, column), share in np.ndenumerate(shares):
                if matrix[row, column]:
                    axes.text(
                        column, row, f"{share:.0f}", ha="center", va="center", fontsize=9,
                        color="white" if share > 55 else "black",
                    )  # fmt: skip
        return figure


def confusion_matrix(answers: Answers, together: int = 1) -> NDArray[np.int64]:
    """Count the images of each true class (row) with each predicted class (column): (K,K).

    `together` is how many neighboring classes are one row or column; for ten thousands of classes
    the whole matrix would take gigabytes.
    """
    cells = -(-answers.classes // together)
    pairs = answers.labels // together * cells + answers.predicted // together
    return np.bincount(pairs, minlength=cells**2).reshape(cells, cells)


@dataclass(frozen=True)
class ClassReport:
    """What a classifier makes of one class, or the mean over classes; 0/0 counts as 0."""

    name: str
    # Of the images that were taken for the class, the share that are of it.
    precision: float
    # Of the images of the class, the share that were taken for it.
    recall: float
    # The harmonic mean of the two.
    f1: float
    # The number of images of the class, and of those that were taken for it.
    support: int
    predicted: int


def class_reports(answers: Answers, classes: Sequence[str]) -> list[ClassReport]:
    """Return one report for each class, in order."""
    right = answers.hits
    taken, support = answers.counts(answers.predicted), answers.counts(answers.labels)
    precision, recall = quotient(right, taken), quotient(right, support)
    f1 = quotient(2 * right, taken + support)
    columns = (each.tolist() for each in (precision, recall, f1, support, taken))
    return [
        ClassReport(name, *row)
        for name, row in zip(classes, zip(*columns, strict=True), strict=True)
    ]


def averages(reports: Sequence[ClassReport]) -> list[ClassReport]:
    """Return the macro average and the one weighted by support.

    Classes that no image has and none was taken for are left out, as in scikit-learn.
    """
    present = [report for report in reports if report.support or report.predicted]
    columns = [(each.precision, each.recall, each.f1) for each in present]
    support = [each.support for each in present]

    def average(name: str, weights: Sequence[int] | None) -> ClassReport:
        precision, recall, f1 = np.average(columns, 0, weights).tolist()
        return ClassReport(name, precision, recall, f1, sum(support), sum(support))

    return [average("macro average", None), average("weighted average", support)]


def quotient(part: np.ndarray, whole: np.ndarray) -> Floats:
    result: Floats = np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)
    return result


class Metric(Protocol):
    """Something measured of the answers to a whole split."""

    def values(self, answers: Answers) -> dict[str, float]:
        """Return the numbers, by names of their own."""
        ...

    def draw(self, answers: Answers, classes: Sequence[str]) -> Figure:
        """Draw the figure; `classes` are the names of the classes."""
        ...


METRICS: dict[str, Metric] = {
    "confusion": Confusion(),
    "calibration": Calibration(),
    "coverage": Coverage(),
}


def all_values(result: Evaluation) -> dict[str, float]:
    """Return the result's own numbers and those of all metrics."""
    values = dict(result.values)
    if isinstance(result, Classification):
        for metric in METRICS.values():
            values |= metric.values(result.answers)
    return values


def result_dict(result: Evaluation) -> dict[str, Any]:
    """Return the numbers of a result, without the answers to single images."""
    without = ("answers", "best_by")
    names = [each.name for each in fields(result) if each.name not in without]
    numbers = {name: getattr(result, name) for name in names}
    if isinstance(result, Classification):
        numbers["acc_interval_95"] = list(result.interval)
    return numbers | all_values(result)


def figures(
    result: Evaluation, images: Tensor, classes: Sequence[str], names: Sequence[object] = ()
) -> Iterator[tuple[str, Figure]]:
    """Yield the figure of every metric and the mistakes among uint8 images (N,3,S,S), by name.

    `names` are the images' own.
    """
    if isinstance(result, Classification):
        for name, metric in METRICS.items():
            yield name, metric.draw(result.answers, classes)
        yield "mistakes", draw_mistakes(result.answers, images, classes, names)


def result_line(result: Evaluation) -> str:
    if not isinstance(result, Classification):
        return f"loss {result.loss:.4f} on {counted(result.count, 'image')}"
    low, high = result.interval
    top5 = f"  top-5 {result.top5:.2%}" if result.answers.classes > 5 else ""
    return (
        f"top-1 {result.acc:.2%} (95 % interval {low:.2%} to {high:.2%})  "
        f"balanced {result.balanced_acc:.2%}{top5}  loss {result.loss:.4f}  "
        f"on {counted(result.count, 'image')}"
    )


def class_table(result: Classification, classes: list[str]) -> str:
    """Format one line per class: name, accuracy, a bar, and the number of correct images of all."""
    names = [shortened(name, CLASS_NAME) for name in classes]
    width = max(map(len, names))
    lines = []
    for name, correct, count in zip(
        names, result.per_class_correct, result.per_class_count, strict=True
    ):
        if not count:
            lines.append(f"  {name:<{width}}  no images")
            continue
        share = correct / count
        bar = "█" * round(20 * share)
        lines.append(f"  {name:<{width}}  {share:7.2%}  {bar:<20}  {correct:5d} of {count}")
    return "\n".join(lines)
