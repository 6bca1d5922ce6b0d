"""Helpers for figures, which are drawn with matplotlib's object interface.

This interface needs no global state and no display.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal

from matplotlib import colormaps as colormaps  # for the rest of the package, as is Figure
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path


@contextmanager
def ignore_missing_glyphs() -> Iterator[None]:
    """Suppress matplotlib's warnings about characters that the font lacks; it draws boxes instead.

    Use it around drawing text that comes from outside, such as class names.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        yield


def width(text: str) -> float:
    """Return the width of a line of text, in inches for each point of the font's size."""
    return sum(map(advance, text))


@cache
def advance(sign: str) -> float:
    """Return how much a character widens a line; measured once, as a whole line takes 0.5 ms."""

    def measured(text: str) -> float:
        points, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
        return float(points)

    font = FontProperties(size=100)
    with ignore_missing_glyphs():
        return (measured(f"|{sign}|") - measured("||")) / 100 / 72


# Colors that color-blind readers can also tell apart.
PALETTE = ["#3b6ea5", "#d1750d", "#3f8f4f", "#a8324a", "#7a5ba8", "#6f6f6f", "#1fa3a3", "#b58900"]


def colors(count: int) -> list[str]:
    """Return `count` colors: from the palette or, if it has too few, a scale from dark to light."""
    if count <= len(PALETTE):
        return PALETTE[:count]
    scale = colormaps["viridis"]
    return [to_hex(scale(0.95 * number / (count - 1))) for number in range(count)]


def chart(
    width: float, height: float, grid: Literal["", "y", "both"] = "both"
) -> tuple[Figure, Axes]:
    """Return an empty chart of this size in inches, with grid lines along these axes."""
    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    if grid:
        axes.grid(axis=grid, alpha=0.3)
    return figure, axes
