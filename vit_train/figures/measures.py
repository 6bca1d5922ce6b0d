"""Measures of a classifier: their numbers, their figures and their text."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vit_train.base.text import CLASS_NAME, counted, shortened
from vit_train.engine.metrics import Answers, Classification, Evaluation
from vit_train.figures.charts import Figure, colormaps, literal
from vit_train.figures.confidence import (
    calibration_error,
    draw_calibration,
    draw_coverage,
    selective_accuracy,
)
from vit_train.figures.sheet import draw_mistakes

MOST_NAMED = 20  # With more classes, names and numbers would be too small to read.
MOST_CELLS = 1000  # The drawing has no more pixels in a row.
NO_IMAGES = "#ececec"  # The color of a true class without images: no shares, not shares of 0.


def draw_confusion(answers: Answers, classes: Sequence[str]) -> Figure:
    """Draw the share of each true class (row) that was taken for each class (column)."""
    together = -(-len(classes) // MOST_CELLS)
    matrix = confusion_matrix(answers, together)
    images = matrix.sum(axis=1, keepdims=True)
    shares = np.ma.masked_where(images + 0 * matrix == 0, 100 * matrix / np.maximum(1, images))
    named = len(classes) <= MOST_NAMED
    side = 2.2 + 0.48 * len(classes) if named else 9
    figure = Figure(figsize=(side + 0.6, side), dpi=100, layout="constrained")
    axes = figure.subplots()
    end = together * len(matrix) - 0.5
    colors = colormaps["Blues"].with_extremes(bad=NO_IMAGES)
    image = axes.imshow(shares, cmap=colors, vmin=0, vmax=100, extent=(-0.5, end, end, -0.5))
    axes.set(xlabel="predicted", ylabel="true", title="share of each true class, %")
    figure.colorbar(image, ax=axes, shrink=0.8)
    if named:
        names = [literal(shortened(name)) for name in classes]
        axes.set_xticks(range(len(names)), names, rotation=60, ha="right")
        axes.set_yticks(range(len(names)), names)
        for row, column in np.argwhere(matrix):
            share = shares[row, column]
            color = "white" if share > 55 else "black"
            axes.text(
                column, row, f"{share:.0f}", ha="center", va="center", fontsize=9, color=color
            )
    return figure


def confusion_matrix(answers: Answers, together: int = 1) -> NDArray[np.int64]:
    """Count the images of each true class (row) with each predicted class (column): (K,K).

    `together` is how many neighboring classes are one row or column; for ten thousands of classes
    the whole matrix would take gigabytes.
    """
    cells = -(-answers.classes // together)
    pairs = answers.labels // together * cells + answers.predicted // together
    return np.bincount(pairs, minlength=cells**2).reshape(cells, cells)


class ClassReport(NamedTuple):
    """The measures of one class, or their means over classes; 0/0 counts as 0."""

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


def class_reports(answers: Answers, classes: Sequence[str]) -> tuple[list[ClassReport], ...]:
    """Return one report for each class, in order; and the macro average and the weighted one.

    Classes that no image has and none was taken for are left out of these, as in scikit-learn.
    """
    right, taken, support = (
        answers.hits,
        answers.counts(answers.predicted),
        answers.counts(answers.labels),
    )
    with np.errstate(invalid="ignore"):
        quotients = right / taken, right / support, 2 * right / (taken + support)
    scores = np.nan_to_num(np.stack(quotients, axis=1))  # (K,3)
    columns = (*scores.T.tolist(), support.tolist(), taken.tolist())
    reports = [ClassReport._make(row) for row in zip(classes, *columns, strict=True)]
    present, total = taken + support > 0, int(support.sum())
    means = []
    for name, weights in (("macro average", None), ("weighted average", support[present])):
        average = np.average(scores[present], 0, weights).tolist()
        means.append(ClassReport._make([name, *average, total, total]))
    return reports, means


# The numbers and the figures of a classifier's predictions for a whole split. A figure has the
# names of the classes, too.
NUMBERS: dict[str, Callable[[Answers], float]] = {
    "ece": calibration_error,
    "selective_acc": selective_accuracy,
}
FIGURES: dict[str, Callable[[Answers, Sequence[str]], Figure]] = {
    "confusion": draw_confusion,
    "calibration": draw_calibration,
    "coverage": draw_coverage,
}


def all_values(result: Evaluation) -> dict[str, float]:
    """Return the result's own numbers and, of a classifier, all NUMBERS."""
    if not isinstance(result, Classification):
        return result.values
    return result.values | {name: number(result.answers) for name, number in NUMBERS.items()}


def result_dict(result: Evaluation) -> dict[str, Any]:
    """Return the numbers of a result, without the predictions for single images."""
    names = {each.name for each in fields(result)} - {"answers", "best_by"}
    numbers = {name: value for name, value in vars(result).items() if name in names}
    if isinstance(result, Classification):
        numbers["acc_interval_95"] = list(result.interval)
    return numbers | all_values(result)


def figures(
    result: Evaluation, images: Tensor, classes: Sequence[str], names: Sequence[object]
) -> Iterator[tuple[str, Figure]]:
    """Yield all FIGURES and the mistakes among uint8 images (N,3,S,S), by name.

    `names` are the images' own.
    """
    if isinstance(result, Classification):
        for name, draw in FIGURES.items():
            yield name, draw(result.answers, classes)
        yield "mistakes", draw_mistakes(result.answers, images, classes, names)


def result_line(result: Evaluation) -> str:
    """Format a result as one line, for the terminal."""
    images = counted(result.count, "image")
    if not isinstance(result, Classification):
        return f"loss {result.loss:.4f} on {images}"
    low, high = result.interval
    top5 = f"  top-5 {result.top5:.2%}" if result.answers.classes > 5 else ""
    return (
        f"top-1 {result.acc:.2%} (95 % interval {low:.2%} to {high:.2%})  "
        f"balanced {result.balanced_acc:.2%}{top5}  loss {result.loss:.4f}  on {images}"
    )


def class_table(result: Classification, classes: list[str]) -> str:
    """Format one line per class: name, accuracy, a bar, and the number of correct images of all."""
    names = [shortened(name, CLASS_NAME) for name in classes]
    width = max(map(len, names))
    counts = zip(names, result.per_class_correct, result.per_class_count, strict=True)
    return "\n".join(
        f"  {name:<{width}}  {correct / count:7.2%}  {'█' * round(20 * correct / count):<20}  "
        f"{correct:5d} of {count}"
        if count
        else f"  {name:<{width}}  no images"
        for name, correct, count in counts
    )
