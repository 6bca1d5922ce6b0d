"""A classifier's measures as numbers and figures, and the results of any task as text."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from vit_train.base.text import counted, shortened
from vit_train.data.dataset import ImageSet
from vit_train.figures.charts import PALETTE, Figure, chart, colormaps, literal
from vit_train.figures.images import draw_mistakes
from vit_train.loop.metrics import (
    Classification,
    Evaluation,
    Floats,
    Integers,
    Predictions,
)
from vit_train.loop.tagging import Tagging

MOST_NAMED = 20  # With more classes, names and numbers would be too small to read.
MOST_CELLS = 1000  # The drawing has at most this many pixels in a row.
NO_IMAGES = "#ececec"  # The color of a true class without images: its shares are undefined, not 0.


def draw_confusion(predictions: Predictions, classes: Sequence[str]) -> Figure:
    """Draw the confusion matrix: the share of each true class (row) predicted as each class."""
    together = -(-len(classes) // MOST_CELLS)
    matrix = confusion_matrix(predictions, together)
    shares = 100 * matrix / np.ma.masked_equal(matrix.sum(axis=1, keepdims=True), 0)
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
            axes.text(
                column, row, f"{share:.0f}", ha="center", va="center", fontsize=9,
                color="white" if share > 55 else "black",
            )  # fmt: skip
    return figure


def confusion_matrix(predictions: Predictions, together: int = 1) -> Integers:
    """Count the images of each true class (row) by predicted class (column): (K,K).

    Each row and each column stands for `together` neighboring classes, because a full matrix of
    tens of thousands of classes would take gigabytes.
    """
    cells = -(-predictions.classes // together)
    pairs = predictions.labels // together * cells + predictions.predicted // together
    return np.bincount(pairs, minlength=cells**2).reshape(cells, cells)


def class_reports(
    predictions: Predictions, classes: Sequence[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the measures of each class, in order, and their (macro) average.

    `support` is the number of images labeled as the class. `precision` is the correct share of the
    images predicted as the class, `recall` the correct share of `support`, and `f1` their harmonic
    mean; 0/0 counts as 0. As in scikit-learn, the average leaves out classes that occur neither as
    labels nor as predictions.
    """
    right = predictions.hits
    predicted = predictions.counts(predictions.predicted)
    support = predictions.counts(predictions.labels)
    counts = np.stack((predicted, support, predicted + support), axis=1)
    scores = np.outer(right, (1, 1, 2)) / np.maximum(1, counts)  # (K,3)
    mean = scores[predicted + support > 0].mean(axis=0)
    rows = [*zip(classes, *scores.T.tolist(), support.tolist(), strict=True)]
    rows.append(("macro average", *mean.tolist(), int(support.sum())))
    keys = ("name", "precision", "recall", "f1", "support")
    *by_class, average = (dict(zip(keys, row, strict=True)) for row in rows)
    return by_class, [average]


CONFIDENCE_BINS = 15


def binned(predictions: Predictions) -> tuple[np.ndarray, ...]:
    """Divide images by confidence into bins of equal width, (lower, upper].

    Return the number of images, the mean confidence and the accuracy in each bin, all of shape
    (CONFIDENCE_BINS,). In an empty bin, confidence and accuracy are 0.
    """
    number = np.ceil(np.nan_to_num(predictions.confidence) * CONFIDENCE_BINS).astype(int) - 1
    count, confidence, correct = (
        np.bincount(number.clip(0, CONFIDENCE_BINS - 1), weights, minlength=CONFIDENCE_BINS)
        for weights in (np.ones(len(number)), predictions.confidence, predictions.correct)
    )
    return count, confidence / np.maximum(1, count), correct / np.maximum(1, count)


def calibration_error(predictions: Predictions) -> float:
    """Return the expected calibration error (Guo et al. 2017).

    The error is the mean of |accuracy − confidence| over the bins of `binned`, weighted by their
    numbers of images.
    """
    count, confidence, accuracy = binned(predictions)
    return float(np.average(np.abs(accuracy - confidence), weights=count))


def draw_calibration(predictions: Predictions, classes: Sequence[str]) -> Figure:
    """Draw accuracy against confidence and, below it, the distribution of the confidence."""
    filled = np.flatnonzero(binned(predictions)[0])  # bins without images get no bars
    count, confidence, accuracy = (each[filled] for each in binned(predictions))
    left = filled / CONFIDENCE_BINS
    place = {"width": 1 / CONFIDENCE_BINS, "align": "edge"}
    figure = Figure(figsize=(5.2, 5.8), dpi=110, layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(4, 1), sharex=True)
    above.bar(left, accuracy, **place, color=PALETTE[0], edgecolor="white", label="accuracy")
    above.bar(
        left, confidence - accuracy, **place, bottom=accuracy, color=PALETTE[3], alpha=0.3,
        edgecolor=PALETTE[3], hatch="//", label="gap to confidence (dark: accuracy is higher)",
    )  # fmt: skip
    above.plot((0, 1), (0, 1), "--", color="gray", linewidth=1)
    title = f"expected calibration error {100 * calibration_error(predictions):.1f} %"
    above.set(title=title, ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    below.bar(left, 100 * count / count.sum(), **place, color=PALETTE[5], edgecolor="white")
    below.set(xlabel="confidence: probability of the predicted class", ylabel="images, %")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


# The accuracies whose coverage is marked in the figure.
MARKED = (0.9, 0.95, 0.99)
# An accuracy on fewer images than this is not marked.
FEWEST = 20


def accuracy_of_surest(predictions: Predictions) -> Floats:
    """Return the accuracy on the n most confident predictions, for n = 1 … N: (N,).

    Predictions of equal confidence have no order, so each counts as their mean accuracy (El-Yaniv &
    Wiener 2010).
    """
    _, group, count = np.unique(-predictions.confidence, return_inverse=True, return_counts=True)
    mean = np.bincount(group, predictions.correct) / count
    return np.cumsum(np.repeat(mean, count)) / np.arange(1, len(group) + 1)


def draw_coverage(predictions: Predictions, classes: Sequence[str]) -> Figure:
    """Plot the accuracy on the most confident predictions against the share of images kept."""
    accuracy = accuracy_of_surest(predictions)
    coverage = np.arange(1, len(accuracy) + 1) / len(accuracy)
    figure, axes = chart(5.6, 4)
    axes.plot(100 * coverage, 100 * accuracy, color=PALETTE[0])
    for wanted in MARKED:
        reached = coverage[FEWEST - 1 :][accuracy[FEWEST - 1 :] >= wanted]
        if len(reached) and 0.02 < reached[-1] < 1:
            x = 100 * reached[-1]
            y = 100 * wanted
            axes.plot(x, y, "o", color=PALETTE[1], markersize=5)
            # Beside the falling curve, on the side with more room.
            side, offset = ("right", (-7, -11)) if x > 50 else ("left", (6, 4))
            axes.annotate(
                f"{y:.0f} % accuracy on {x:.0f} % of images", (x, y), offset, ha=side,
                textcoords="offset points", fontsize=9,
            )  # fmt: skip
    axes.set(
        xlabel="images kept, most confident first, %", ylabel="accuracy on kept images, %",
        xlim=(0, 100), ylim=(max(0, 100 * min(accuracy[len(accuracy) // 50 :]) - 5), 101),
    )  # fmt: skip
    return figure


# Numbers and figures that can be computed from a classifier's predictions for a whole split.
# Figures also show the names of the classes.
NUMBERS: dict[str, Callable[[Predictions], float]] = {
    "ece": calibration_error,
    "selective_acc": lambda predictions: float(accuracy_of_surest(predictions).mean()),
}
# The names of the numbers above; others are the user's own.
BUILT_IN = frozenset(NUMBERS)
FIGURES: dict[str, Callable[[Predictions, Sequence[str]], Figure]] = {
    "confusion": draw_confusion,
    "calibration": draw_calibration,
    "coverage": draw_coverage,
}


def all_values(result: Evaluation) -> dict[str, float]:
    """Return the result's own values and, for a classifier, also the metrics in NUMBERS."""
    if not isinstance(result, Classification):
        return result.values
    return result.values | {
        name: float(number(result.predictions)) for name, number in NUMBERS.items()
    }


def result_dict(result: Evaluation) -> dict[str, Any]:
    """Return all values of a result by name, without the predictions for individual images."""
    hidden = ("predictions", "more")
    numbers = {key: each for key, each in vars(result).items() if key not in hidden}
    if isinstance(result, Classification | Tagging):  # the interval is of the second scalar
        numbers[f"{result.scalars[1]}_interval_95"] = list(result.interval)
    return numbers | all_values(result)


def figures(
    result: Evaluation, images: ImageSet, classes: Sequence[str]
) -> Iterator[tuple[str, Figure]]:
    """Yield (name, figure) for each of FIGURES and for a sheet of mistakes, for classifiers only.

    `images` are those that were evaluated.
    """
    if isinstance(result, Classification):
        for name, draw in FIGURES.items():
            yield name, draw(result.predictions, classes)
        yield "mistakes", draw_mistakes(result.predictions, images, classes)


def result_line(result: Evaluation) -> str:
    """Format a result as one line, for the terminal."""
    images = counted(result.count, "image")
    if not isinstance(result, Classification | Tagging):
        return f"loss {result.loss:.4f} on {images}"
    low, high = result.interval
    interval = f"(95 % interval {low:.2%} to {high:.2%})"
    line = f"loss {result.loss:.4f}  on {images}"
    if isinstance(result, Tagging):
        f1 = f"micro F1 {result.micro_f1:.3f}  macro F1 {result.macro_f1:.3f}"
        return f"mAP {result.map:.2%} {interval}  {f1}  {line}"
    top5 = f"  top-5 {result.top5:.2%}" if result.predictions.classes > 5 else ""
    return f"top-1 {result.acc:.2%} {interval}  balanced {result.balanced_acc:.2%}{top5}  {line}"
