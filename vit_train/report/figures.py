"""Pictures, drawn with matplotlib's object interface: no global state, no display."""

import math
from collections.abc import Sequence

from matplotlib.figure import Figure
from torch import Tensor


def image_grid(images: Tensor, titles: Sequence[str], columns: int = 6) -> Figure:
    """RGB uint8 (N,3,S,S) as a grid with a title above each image."""
    rows = math.ceil(len(images) / columns)
    titles = [shortened(title) for title in titles]
    fontsize = min(15, 150 / max(map(len, titles)))  # as wide as an image
    figure = Figure(figsize=(1.25 * columns, 1.4 * rows), dpi=100, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for axis in axes:
        axis.set_axis_off()
    for axis, image, title in zip(figure.axes, images, titles, strict=False):
        pixels = image.permute(1, 2, 0).cpu().numpy()  # (S,S,C)
        axis.imshow(pixels, interpolation="nearest")
        axis.set_title(title, fontsize=fontsize, pad=4, parse_math=False)
    return figure


def shortened(title: str, length: int = 22) -> str:
    return title if len(title) <= length else f"{title[: length - 1]}…"
