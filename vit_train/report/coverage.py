"""Accuracy against coverage: what is gained if the doubtful images are left to somebody else."""

from collections.abc import Sequence

import numpy as np

from vit_train.engine.answers import Answers, Floats
from vit_train.viz.figures import PALETTE, Figure, chart

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
