"""Pictures, drawn with matplotlib's object interface: no global state, no display."""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from torch import Tensor

from vit_train.report.printable import printable


def image_grid(images: Tensor, titles: Sequence[str], columns: int = 6) -> Figure:
    """RGB uint8 (N,3,S,S) as a grid with a title above each image."""
    rows = math.ceil(len(images) / columns)
    titles = [shortened(title) for title in titles]
    fontsize = min(15, 135 / max(map(len, titles)))  # as wide as an image
    figure = Figure(figsize=(1.25 * columns, 1.4 * rows), dpi=100, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for axis in axes:
        axis.set_axis_off()
    for axis, image, title in zip(figure.axes, images, titles, strict=False):
        pixels = image.permute(1, 2, 0).cpu().numpy()  # (S,S,C)
        axis.imshow(pixels, interpolation="nearest")
        axis.set_title(title, fontsize=fontsize, pad=4, parse_math=False)
    return figure


@contextmanager
def any_letter() -> Iterator[None]:
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
