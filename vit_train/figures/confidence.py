"""Calibration and coverage: how far a classifier's confidence can be trusted."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vit_train.engine.metrics import Answers, Floats, log_softmax, of_label
from vit_train.figures.charts import PALETTE, Figure, chart

BINS = 15
# Temperatures beyond these say that logits mean nothing, or that every answer is right.
COLDEST, HOTTEST = 0.1, 10.0


class Bins(NamedTuple):
    """Images sorted into bins of equal width by their confidence: (BINS,) each."""

    images: NDArray[np.int64]
    # Means over the bin; 0 if it is empty.
    confidence: Floats
    accuracy: Floats


class Calibration:
    """The expected calibration error, and the reliability diagram (Guo et al. 2017)."""

    def values(self, answers: Answers) -> dict[str, float]:
        return {"ece": calibration_error(answers)}

    def draw(self, answers: Answers, classes: Sequence[str]) -> Figure:
        """Draw accuracy against confidence, and below it how many images have which confidence."""
        bins = binned(answers)
        edges = np.linspace(0, 1, BINS + 1)
        width = edges[1] - edges[0]
        figure = Figure(figsize=(5.2, 5.6), dpi=110, layout="constrained")
        above, below = figure.subplots(2, 1, height_ratios=(4, 1), sharex=True)
        filled = bins.images > 0
        above.bar(
            edges[:-1][filled], bins.accuracy[filled], width, align="edge", color=PALETTE[0],
            edgecolor="white", label="accuracy",
        )  # fmt: skip
        gap = bins.confidence - bins.accuracy
        above.bar(
            edges[:-1][filled], gap[filled], width, bottom=bins.accuracy[filled], align="edge",
            color=PALETTE[3], alpha=0.3, edgecolor=PALETTE[3], hatch="//", label="gap",
        )  # fmt: skip
        above.plot((0, 1), (0, 1), "--", color="gray", linewidth=1)
        above.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
        above.set_title(f"expected calibration error {100 * calibration_error(answers):.1f} %")
        above.legend(loc="upper left", frameon=False)
        share = 100 * bins.images / max(1, bins.images.sum())
        below.bar(edges[:-1], share, width, align="edge", color=PALETTE[5], edgecolor="white")
        below.set(xlabel="confidence: probability of the predicted class", ylabel="images, %")
        for axes in (above, below):
            axes.spines[["top", "right"]].set_visible(False)
        return figure


def binned(answers: Answers) -> Bins:
    """Sort the images into bins, each open below and closed above."""
    number = np.clip(np.ceil(np.nan_to_num(answers.confidence) * BINS).astype(int) - 1, 0, BINS - 1)
    count = np.bincount(number, minlength=BINS)
    sums = (
        np.bincount(number, weights, minlength=BINS)
        for weights in (answers.confidence, answers.correct)
    )
    confidence, accuracy = (each / np.maximum(1, count) for each in sums)
    return Bins(count, confidence, accuracy)


def calibration_error(answers: Answers) -> float:
    """Return the mean |accuracy − confidence| over the bins, weighted by their images."""
    bins = binned(answers)
    gaps = np.abs(bins.accuracy - bins.confidence)
    return float((bins.images * gaps).sum() / max(1, bins.images.sum()))


def fitted_temperature(answers: Answers) -> float:
    """Return the T for which softmax(logits / T) has the least cross-entropy (Guo et al. 2017).

    The loss is convex in 1/T, so that its derivative, the mean of E[logit] − logit of the label, is
    bisected between COLDEST and HOTTEST.
    """

    def slope(inverse: float) -> float:
        probabilities = np.exp(log_softmax(inverse * answers.logits))
        expected = (probabilities * answers.logits).sum(axis=1)
        return float((expected - of_label(answers.logits, answers.labels)).mean())

    low, high = 1 / HOTTEST, 1 / COLDEST
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return float(np.clip(1 / high, COLDEST, HOTTEST))


def cooled(answers: Answers, temperature: float) -> Answers:
    """Return the answers with their logits divided by the temperature."""
    return Answers(answers.labels, answers.logits / temperature)


# Accuracies whose coverage is marked in the figure.
MARKED = (0.9, 0.95, 0.99)
# An accuracy on fewer images is not worth a mark.
FEWEST = 20


class Coverage:
    """The accuracy on the images that the model is surest of, whatever their number.

    From El-Yaniv & Wiener 2010. Its mean over all numbers is `selective_acc`.
    """

    def values(self, answers: Answers) -> dict[str, float]:
        return {"selective_acc": float(accuracy_of_surest(answers).mean())}

    def draw(self, answers: Answers, classes: Sequence[str]) -> Figure:
        accuracy = accuracy_of_surest(answers)
        coverage = np.arange(1, len(accuracy) + 1) / len(accuracy)
        figure, axes = chart(5.6, 4)
        axes.plot(100 * coverage, 100 * accuracy, color=PALETTE[0])
        for wanted in MARKED:
            reached = np.flatnonzero(accuracy >= wanted)
            reached = reached[reached + 1 >= FEWEST]
            if len(reached) and 0.02 < coverage[reached[-1]] < 1:
                x, y = 100 * coverage[reached[-1]], 100 * wanted
                axes.plot(x, y, "o", color=PALETTE[1], markersize=5)
                axes.annotate(
                    f"{100 * wanted:.0f} % right on {x:.0f} %", (x, y), (6, 4),
                    textcoords="offset points", fontsize=9,
                )  # fmt: skip
        lowest = 100 * min(accuracy[len(accuracy) // 50 :])
        axes.set(xlim=(0, 100), ylim=(max(0, lowest - 5), 101))
        axes.set(xlabel="images kept, most certain first, %", ylabel="accuracy on them, %")
        return figure


def accuracy_of_surest(answers: Answers) -> Floats:
    """Return the accuracy on the n images of the highest confidence, for n = 1 … N: (N,).

    Images of equal confidence count as if each were a mixture of all of them.
    """
    confidence, correct = answers.confidence, answers.correct
    _, group, count = np.unique(-confidence, return_inverse=True, return_counts=True)
    mean = np.bincount(group, correct) / count
    order = np.argsort(-confidence, kind="stable")
    result: Floats = np.cumsum(mean[group[order]]) / np.arange(1, len(order) + 1)
    return result
