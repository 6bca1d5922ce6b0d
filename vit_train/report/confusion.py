"""The confusion matrix."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vit_train.engine.answers import Answers
from vit_train.text import shortened
from vit_train.viz.figures import Figure, colormaps

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
