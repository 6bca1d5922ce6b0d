"""Calibration and coverage: how far a classifier's confidence can be trusted."""

from collections.abc import Sequence

import numpy as np

from vit_train.engine.metrics import Answers, Floats, log_softmax, of_label
from vit_train.figures.charts import PALETTE, Figure, chart

BINS = 15
# Temperatures beyond these say that logits mean nothing, or that every answer is right.
COLDEST, HOTTEST = 0.1, 10.0


def binned(answers: Answers) -> tuple[np.ndarray, ...]:
    """Sort images by confidence into bins of equal width, each open below and closed above.

    Return of each bin the number of images, their mean confidence and their accuracy, (BINS,) each;
    the means of an empty bin are 0.
    """
    number = np.ceil(np.nan_to_num(answers.confidence) * BINS).astype(int) - 1
    count, confidence, correct = (
        np.bincount(number.clip(0, BINS - 1), weights, minlength=BINS)
        for weights in (np.ones(len(number)), answers.confidence, answers.correct)
    )
    return count, confidence / np.maximum(1, count), correct / np.maximum(1, count)


def calibration_error(answers: Answers) -> float:
    """Return the expected calibration error (Guo et al. 2017).

    It is the mean |accuracy − confidence| over the bins, weighted by their images.
    """
    count, confidence, accuracy = binned(answers)
    return float((count * np.abs(accuracy - confidence)).sum() / max(1, count.sum()))


def draw_calibration(answers: Answers, classes: Sequence[str]) -> Figure:
    """Draw accuracy against confidence, and below it how many images have which confidence."""
    count, confidence, accuracy = binned(answers)
    left, width = np.arange(BINS) / BINS, 1 / BINS
    figure = Figure(figsize=(5.2, 5.6), dpi=110, layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=(4, 1), sharex=True)
    above.bar(
        left, accuracy, width, align="edge", color=PALETTE[0], edgecolor="white", label="accuracy"
    )
    filled = count > 0
    above.bar(
        left[filled], (confidence - accuracy)[filled], width, bottom=accuracy[filled], align="edge",
        color=PALETTE[3], alpha=0.3, edgecolor=PALETTE[3], hatch="//", label="gap",
    )  # fmt: skip
    above.plot((0, 1), (0, 1), "--", color="gray", linewidth=1)
    above.set(ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))
    above.set_title(f"expected calibration error {100 * calibration_error(answers):.1f} %")
    above.legend(loc="upper left", frameon=False)
    share = 100 * count / max(1, count.sum())
    below.bar(left, share, width, align="edge", color=PALETTE[5], edgecolor="white")
    below.set(xlabel="confidence: probability of the predicted class", ylabel="images, %")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


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
    """Return the predictions with their logits divided by the temperature."""
    return Answers(answers.labels, answers.logits / temperature)


# Accuracies whose coverage is marked in the figure.
MARKED = (0.9, 0.95, 0.99)
# An accuracy on fewer images is not worth a mark.
FEWEST = 20


def accuracy_of_surest(answers: Answers) -> Floats:
    """Return the accuracy on the n images of the highest confidence, for n = 1 … N: (N,).

    Images of equal confidence count as if each were a mixture of all of them (El-Yaniv & Wiener
    2010).
    """
    _, group, count = np.unique(-answers.confidence, return_inverse=True, return_counts=True)
    mean = np.bincount(group, answers.correct) / count
    order = np.argsort(-answers.confidence, kind="stable")
    result: Floats = np.cumsum(mean[group[order]]) / np.arange(1, len(order) + 1)
    return result


def selective_accuracy(answers: Answers) -> float:
    """Return the mean accuracy on the surest images, over all numbers of them."""
    return float(accuracy_of_surest(answers).mean())


def draw_coverage(answers: Answers, classes: Sequence[str]) -> Figure:
    """Draw the accuracy on the images that the model is surest of, whatever their number."""
    accuracy = accuracy_of_surest(answers)
    coverage = np.arange(1, len(accuracy) + 1) / len(accuracy)
    figure, axes = chart(5.6, 4)
    axes.plot(100 * coverage, 100 * accuracy, color=PALETTE[0])
    for wanted in MARKED:
        reached = coverage[FEWEST - 1 :][accuracy[FEWEST - 1 :] >= wanted]
        if len(reached) and 0.02 < reached[-1] < 1:
            x, y = 100 * reached[-1], 100 * wanted
            axes.plot(x, y, "o", color=PALETTE[1], markersize=5)
            axes.annotate(
                f"{100 * wanted:.0f} % right on {x:.0f} %", (x, y), (6, 4),
                textcoords="offset points", fontsize=9,
            )  # fmt: skip
    lowest = 100 * min(accuracy[len(accuracy) // 50 :])
    axes.set(xlim=(0, 100), ylim=(max(0, lowest - 5), 101))
    axes.set(xlabel="images kept, most certain first, %", ylabel="accuracy on them, %")
    return figure
