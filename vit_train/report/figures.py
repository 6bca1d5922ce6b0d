"""Pictures, drawn with matplotlib's object interface: no global state, no display."""

import math
from collections.abc import Sequence

from matplotlib.figure import Figure
from torch import Tensor


def image_grid(images: Tensor, titles: Sequence[str], columns: int = 6) -> Figure:
    """RGB uint8 (N,3,S,S) as a grid with a title above each image."""
    rows = math.ceil(len(images) / columns)
    figure = Figure(figsize=(1.25 * columns, 1.4 * rows), dpi=100, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for axis in axes:
        axis.set_axis_off()
    for axis, image, title in zip(figure.axes, images, titles, strict=False):
        pixels = image.permute(1, 2, 0).cpu().numpy()  # (S,S,C)
        axis.imshow(pixels, interpolation="nearest")
        axis.set_title(title, fontsize=15, pad=4)
    return figure
