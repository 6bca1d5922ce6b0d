"""Pictures, drawn with matplotlib's object interface: no global state, no display."""

import math
from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
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


def side_by_side(pictures: Sequence[Tensor], titles: Sequence[str], sets: int) -> Figure:
    """RGB uint8 (N,3,S,S), several of each image: next to each other, `sets` images in a row."""
    rows, many = math.ceil(len(pictures[0]) / sets), len(pictures)
    widths = [1.0] * many + [0.15]  # a gap after each image's pictures
    close = ConstrainedLayoutEngine(w_pad=0.01, h_pad=0.01, wspace=0, hspace=0)
    figure = Figure(figsize=(1.1 * many * sets, 1.15 * rows + 0.2), dpi=100, layout=close)
    axes = figure.subplots(
        rows, sets * (many + 1), squeeze=False, gridspec_kw={"width_ratios": widths * sets}
    )
    for axis in axes.flat:
        axis.set_axis_off()
    for number, images in enumerate(zip(*pictures, strict=True)):
        row, column = divmod(number, sets)
        for place, (image, title) in enumerate(zip(images, titles, strict=True)):
            axis = axes[row, column * (many + 1) + place]
            axis.imshow(image.permute(1, 2, 0).cpu().numpy(), interpolation="nearest")
            if row == 0:
                axis.set_title(title, fontsize=8, pad=3)
    return figure


def shortened(title: str, length: int = 22) -> str:
    return title if len(title) <= length else f"{title[: length - 1]}…"
