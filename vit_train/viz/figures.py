"""Pictures, drawn with matplotlib's object interface: no global state, no display."""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from torch import Tensor

from vit_train.text import printable

# In inches: a picture's side, its title above it, and the margin around both.
SIDE, TITLE, MARGIN = 1.18, 0.22, 0.04


def image_grid(images: Tensor, titles: Sequence[str], columns: int = 6) -> Figure:
    """RGB uint8 (N,3,S,S) as a grid with a title above each image.

    All share one pair of axes, in inches from the upper left corner: a pair for each image takes
    a second to lay out.
    """
    rows = math.ceil(len(images) / columns)
    width, height = columns * (SIDE + MARGIN) + MARGIN, rows * (SIDE + TITLE + MARGIN) + MARGIN
    titles = [shortened(title) for title in titles]
    fontsize = min(15, 125 / max(map(len, titles)))  # as wide as an image
    figure = Figure(figsize=(width, height), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    for index, (image, title) in enumerate(zip(images, titles, strict=True)):
        row, column = divmod(index, columns)
        left = MARGIN + column * (SIDE + MARGIN)
        top = MARGIN + row * (SIDE + TITLE + MARGIN) + TITLE
        pixels = image.permute(1, 2, 0).cpu().numpy()  # (S,S,C)
        extent = (left, left + SIDE, top + SIDE, top)
        axes.imshow(pixels, interpolation="nearest", extent=extent)
        axes.text(
            left + SIDE / 2, top - TITLE / 2, title, fontsize=fontsize, parse_math=False,
            horizontalalignment="center", verticalalignment="center_baseline",
        )  # fmt: skip
    axes.set(xlim=(0, width), ylim=(height, 0))
    return figure


@contextmanager
def ignore_missing_glyphs() -> Iterator[None]:
    """Around drawing text from outside: a letter the font lacks becomes a box, in silence."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        yield


def shortened(title: str, length: int = 22) -> str:
    title = printable(title, keep="")
    return title if len(title) <= length else f"{title[: length - 1]}…"


# To be told apart, also by those who see fewer.
PALETTE = ["#3b6ea5", "#d1750d", "#3f8f4f", "#a8324a", "#7a5ba8", "#6f6f6f", "#1fa3a3", "#b58900"]


def colours(count: int) -> list[str]:
    """So many; where there are not enough, steps of a scale from dark to light."""
    if count <= len(PALETTE):
        return PALETTE[:count]
    scale = colormaps["viridis"]
    return [to_hex(scale(0.95 * number / (count - 1))) for number in range(count)]
