"""Image grids and helpers for figures, drawn with matplotlib's object interface.

This interface needs no global state and no display.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from torch import Tensor

from vit_train.text import printable

# In inches: a picture's side, the height of the title above it, and the margin around both.
SIDE, TITLE, MARGIN = 1.18, 0.22, 0.04


def image_grid(images: Tensor, titles: Sequence[str], columns: int = 6) -> Figure:
    """Draw RGB uint8 images (N,3,S,S) as a grid with a title above each image.

    All images share one Axes, whose units are inches from the upper left corner: a separate Axes
    for each image would take a second to lay out.
    """
    rows = math.ceil(len(images) / columns)
    width, height = columns * (SIDE + MARGIN) + MARGIN, rows * (SIDE + TITLE + MARGIN) + MARGIN
    titles = [shortened(title) for title in titles]
    fontsize = min(15, 125 / max(map(len, titles)))  # the longest title is as wide as an image
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
    """Suppress matplotlib's warnings about characters that the font lacks; it draws boxes instead.

    Use it around drawing text that comes from outside, such as class names.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        yield


def shortened(title: str, length: int = 22) -> str:
    title = printable(title, keep="")
    return title if len(title) <= length else f"{title[: length - 1]}…"


def listed(names: Sequence[str], most: int = 10) -> str:
    """Return the first names, each shortened, and how many more there are."""
    more = [f"… {len(names) - most} more"] if len(names) > most else []
    return ", ".join([*(shortened(name) for name in names[:most]), *more])


# Colors that color-blind readers can also tell apart.
PALETTE = ["#3b6ea5", "#d1750d", "#3f8f4f", "#a8324a", "#7a5ba8", "#6f6f6f", "#1fa3a3", "#b58900"]


def colors(count: int) -> list[str]:
    """Return `count` colors: from the palette or, if it has too few, a scale from dark to light."""
    if count <= len(PALETTE):
        return PALETTE[:count]
    scale = colormaps["viridis"]
    return [to_hex(scale(0.95 * number / (count - 1))) for number in range(count)]
