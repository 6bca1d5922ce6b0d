"""Maps over images, and galleries with them."""

import math
from collections.abc import Sequence
from textwrap import fill

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib import colormaps
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor, nn, no_grad

from vit_train.base.text import shortened
from vit_train.data.batches import Batch, Normalize
from vit_train.figures.charts import chart
from vit_train.model.build import images_at_once
from vit_train.model.vit import Encoder, VisionTransformer
from vit_train.tasks.task import Task

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


def similarity(table: Tensor) -> Tensor:
    """Return the cosine similarity of every two of N positions: (N,D) → (N,N)."""
    directions = F.normalize(table, dim=1)
    return directions @ directions.t()


def mosaic(alike: Tensor) -> Tensor:
    """Arrange similarities (N,N) as a G×G grid of maps, one per patch at the patch's place.

    A map's G×G cells are the patch's similarities to all patches, at their places. Lines of NaN
    separate the maps, so each side of the result is G·(G + 1) − 1 long.
    """
    grid = math.isqrt(len(alike))
    maps = alike.view(grid, grid, grid, grid)  # row, column, other row, other column
    maps = F.pad(maps, (0, 1, 0, 1), value=float("nan"))
    return maps.permute(0, 2, 1, 3).reshape(grid * (grid + 1), grid * (grid + 1))[:-1, :-1]


# More patches than this are too small to be drawn, and their similarities take gigabytes.
MOST_PLACES = 48**2


@torch.no_grad()
def draw_positions(encoder: Encoder) -> Figure:
    """Draw the first table of absolute positions and the similarities of the patches' positions.

    The similarities are drawn as in figure 7 (middle) of Dosovitskiy et al. 2021.
    """
    table = encoder.pos_embed[0]()[0].float().cpu()  # (T,D)
    patches = table[len(table) - encoder.grid**2 :]
    figure = Figure(figsize=(10, 4.6), dpi=120)
    values, places = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.07, right=0.99, bottom=0.12, top=0.92, wspace=0.06)
    most = table.abs().quantile(0.99).item()
    image = values.imshow(
        table.numpy(), cmap="RdBu", vmin=-most, vmax=most, aspect="auto", interpolation="nearest"
    )
    values.set(title=f"{encoder.config.positions}: the table", xlabel="value", ylabel="token")
    figure.colorbar(image, ax=values, shrink=0.8)
    image = places.imshow(mosaic(similarity(patches)).numpy(), cmap="viridis", vmax=1)
    places.set(title="each patch's cosine similarity to all patches", xticks=[], yticks=[])
    places.set_anchor("N")  # its title as high as the other
    places.spines[:].set_visible(False)
    figure.colorbar(image, ax=places, shrink=0.8)
    return figure


# In pixels: the approximate width to which small pictures are enlarged (by a whole factor), the
# gaps between pictures and between images, the height of the titles, and of a scale's bar.
PICTURE, GAP, WIDE_GAP, TITLE_HEIGHT, BAR = 96, 2, 14, 20, 10
FONT = 12


def side_by_side(pictures: Sequence[Tensor], titles: Sequence[str], across: int) -> Image.Image:
    """Draw several pictures of each of N images in one mosaic, with titles above the columns.

    Each of `pictures` is RGB uint8 (N,3,S,S) and has one of the `titles`. The pictures of one image
    stand next to each other, with `across` images in a row.
    """
    size = pictures[0].shape[-1]
    size *= max(1, round(PICTURE / size))
    together = torch.stack(list(pictures), dim=1)  # (N,K,3,S,S)
    number, kinds = together.shape[:2]
    tiles = F.interpolate(together.flatten(0, 1).float(), (size, size)).byte().cpu()
    step = kinds * (size + GAP) + WIDE_GAP
    rows = -(-number // across)
    shape = step * min(across, number) - WIDE_GAP, rows * (size + WIDE_GAP) + TITLE_HEIGHT
    sheet = Image.new("RGB", shape, "white")
    draw = ImageDraw.Draw(sheet)
    for place, tile in enumerate(tiles):
        image, kind = divmod(place, kinds)
        row, column = divmod(image, across)
        left, top = column * step + kind * (size + GAP), row * (size + WIDE_GAP) + TITLE_HEIGHT
        sheet.paste(Image.fromarray(tile.permute(1, 2, 0).numpy()), (left, top))
        if row == 0:
            middle = left + size // 2, TITLE_HEIGHT // 2
            draw.text(middle, titles[kind], fill="black", anchor="mm", font_size=FONT)
    return sheet


def with_scale(
    sheet: Image.Image, colors: NDArray[np.uint8], ends: tuple[str, str], legend: str
) -> Image.Image:
    """Return the sheet with a scale of `colors` (N,3) below it, its ends named, and a legend."""
    width, top = sheet.size
    whole = Image.new("RGB", (width, top + 2 * TITLE_HEIGHT), "white")
    whole.paste(sheet)
    left, right, middle = 2 * width // 5, 3 * width // 5, top + TITLE_HEIGHT // 2
    bar = Image.fromarray(colors[None]).resize((right - left, BAR))
    whole.paste(bar, (left, middle - BAR // 2))
    draw = ImageDraw.Draw(whole)
    for place, words, anchor in (
        ((left - 6, middle), ends[0], "rm"),
        ((right + 6, middle), ends[1], "lm"),
        ((width // 2, middle + TITLE_HEIGHT), legend, "mm"),
    ):
        draw.text(place, words, fill="black", anchor=anchor, font_size=FONT)
    return whole


# The most images, pictures in a row and rows that fit on a page.
IMAGES, ACROSS, ROWS = 12, 12, 4


def gallery_size(task: Task, model: nn.Module) -> int:
    """Return how many images are drawn: 0 if the attention for one would take too much memory."""
    most = min(IMAGES, pictures_across(task) * ROWS)
    return min(most, images_at_once(model)) if isinstance(model, VisionTransformer) else most


def pictures_across(task: Task) -> int:
    return max(1, ACROSS // len(task.columns))


@no_grad()
def draw_gallery(task: Task, model: nn.Module, batch: Batch, normalize: Normalize) -> Image.Image:
    """Draw the task's pictures of the batch's first images; the model must be in eval mode."""
    images, targets = (tensor[: gallery_size(task, model)] for tensor in batch)
    pictures = task.pictures(model, images, targets)
    plain = normalize.undo(pictures[0])
    shown = [normalize.undo(each) if each.ndim == 4 else over(plain, each) for each in pictures]
    sheet = side_by_side(shown, task.columns, pictures_across(task))
    return with_scale(sheet, color_scale(), ENDS, task.legend) if task.legend else sheet


def over(images: Tensor, maps: Tensor) -> Tensor:
    """Return the uint8 images (N,3,S,S) under the colors of their maps (N,G,G)."""
    pairs = zip(images.permute(0, 2, 3, 1).cpu().numpy(), maps.float().cpu().numpy(), strict=True)
    drawn = [torch.from_numpy(covered(pixels, cells)) for pixels, cells in pairs]
    return torch.stack(drawn).permute(0, 3, 1, 2)
