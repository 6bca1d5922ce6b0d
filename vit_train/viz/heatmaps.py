"""Maps over images: where a prediction comes from."""

from collections.abc import Sequence
from textwrap import fill

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from vit_train.text import shortened
from vit_train.viz.figures import chart

# Perceptually uniform, and also readable in gray.
COLORS = "magma"
# How much of the gray image the map's color covers where the map is 0, and where it is highest.
COVER = 0.3, 0.8
# What the ends of the scale of colors mean.
ENDS = "0", "highest of each map"
# In inches: a column, a row, and what is below the rows.
WIDTH, ROW, BELOW = 3.1, 1.85, 0.8
# Characters of the legend, and of a title, that fit into a column.
LEGEND, TITLE = 42, 46
# What the percentages of filters are, and how many of its characters fit above a column of them.
FILTERS, FILTER_TITLE = "share of the variance of all filters that each component explains", 15


def draw_maps(
    images: Tensor, maps: Tensor, titles: Sequence[str], legend: str, columns: int = 4
) -> Figure:
    """Draw uint8 images (N,3,S,S), each with a title and a copy overlaid with its map (N,G,G).

    A map is scaled from 0 to its highest value, and each of its cells is shown as one color.
    """
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    height = ROW * rows + BELOW
    figure = Figure(figsize=(WIDTH * columns, height), dpi=110)
    panels = figure.subplots(rows, columns, squeeze=False)
    figure.subplots_adjust(
        left=0.01, right=0.99, top=1 - 0.28 / height, bottom=BELOW / height, wspace=0.06, hspace=0.2
    )
    for panel in panels.flat:
        panel.set_axis_off()
    for panel, image, cells, title in zip(panels.flat, images, maps, titles, strict=False):
        pixels = image.permute(1, 2, 0).cpu().numpy()  # (S,S,3)
        side = len(pixels)
        line = np.full((side, max(1, side // 16), 3), 255, np.uint8)
        both = np.concatenate([pixels, line, covered(pixels, cells.cpu().numpy())], axis=1)
        panel.imshow(both, interpolation="nearest")
        panel.set_title(shortened(title, TITLE), fontsize=9, pad=3, parse_math=False)
    share = max(0.4, 0.9 / columns)
    bar = figure.add_axes(((1 - share) / 2, 0.52 / height, share, 0.12 / height))
    bar.imshow(color_scale()[None], aspect="auto")
    bar.set_yticks([])
    first, last = bar.set_xticks([0, 255], ENDS, fontsize=8)
    first.label1.set_horizontalalignment("left")
    last.label1.set_horizontalalignment("right")
    bar.set_xlabel(fill(legend, LEGEND * columns), fontsize=9, labelpad=1, parse_math=False)
    return figure


def map_title(known: str, predicted: str, probability: str = "") -> str:
    """Return a title in which, for want of room, what is known gives way to the prediction."""
    room = TITLE - len(", predicted: ") - len(probability)
    predicted = shortened(predicted, min(18, room - 1))
    return f"{shortened(known, room - len(predicted))}, predicted: {predicted}{probability}"


def color_scale() -> NDArray[np.uint8]:
    """Return the colors (256,3) of a map's values, from 0 to its highest."""
    colors: NDArray[np.uint8] = colormaps[COLORS](range(256), bytes=True)[:, :3]
    return colors


def covered(pixels: NDArray[np.uint8], cells: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the gray image (S,S,3) under the colors of its map (G,G)."""
    scale = len(pixels) // len(cells)
    values = np.kron(cells / max(float(cells.max()), 1e-12), np.ones((scale, scale)))
    colors = 255 * colormaps[COLORS](np.clip(values, 0, 1))[..., :3]
    gray = pixels.mean(axis=2, keepdims=True)
    cover = np.interp(values, (0, 1), COVER)[..., None]
    mixed: NDArray[np.uint8] = (cover * colors + (1 - cover) * gray).astype(np.uint8)
    return mixed


def draw_distances(layers: Sequence[Sequence[float]], image_size: int, even: float) -> Figure:
    """Draw how far each head of each layer looks (Dosovitskiy et al. 2021, figure 7).

    `even` is how far a head looks that attends to all patches alike.
    """
    figure, axes = chart(5.2, 3.6, grid="y")
    for number, heads in enumerate(layers, start=1):
        axes.plot([number] * len(heads), sorted(heads), "o", color="#3b6ea5", alpha=0.75)
    axes.set_xticks(range(1, len(layers) + 1))
    axes.set_title("one dot for each head", fontsize=9)
    axes.set(xlabel="layer", ylabel="mean attention distance, pixels", ylim=(0, 0.75 * image_size))
    axes.axhline(even, linestyle="--", linewidth=1, color="gray")
    axes.annotate(
        "even attention", (1, even), (0, 3), xycoords=axes.get_yaxis_transform(),
        textcoords="offset points", ha="right", fontsize=8, color="gray",
    )  # fmt: skip
    return figure


def draw_filters(filters: Tensor, shares: Sequence[float]) -> Figure:
    """Draw principal components of the patch embedding's filters (K,3,P,P) with their shares."""
    columns = min(7, len(filters))
    rows = -(-len(filters) // columns)
    title = fill(FILTERS, FILTER_TITLE * columns)
    above = 0.15 * (title.count("\n") + 1) + 0.1
    height = 1.3 * rows + above
    figure = Figure(figsize=(1.05 * columns, height), dpi=110)
    figure.suptitle(title, fontsize=8, y=1 - 0.05 / height)
    panels = figure.subplots(rows, columns, squeeze=False)
    figure.subplots_adjust(
        left=0.02, right=0.98, top=1 - (above + 0.22) / height, bottom=0.02, wspace=0.12, hspace=0.3
    )
    for panel in panels.flat:
        panel.set_axis_off()
    for panel, values, share in zip(panels.flat, filters, shares, strict=False):
        pixels = values.permute(1, 2, 0).cpu().numpy()
        most = max(float(np.abs(pixels).max()), 1e-12)
        panel.imshow(0.5 + 0.5 * pixels / most, interpolation="nearest")
        panel.set_title(f"{100 * share:.1f} %", fontsize=8, pad=2)
    return figure
