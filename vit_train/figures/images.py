"""Sheets of labeled images, heat maps, attention, filters and position embeddings."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from textwrap import fill

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from torch import Tensor, nn

from vit_train.base.text import printable
from vit_train.config.fields import Size
from vit_train.data.batches import Batch, Normalize
from vit_train.data.dataset import ImageSet
from vit_train.figures.charts import (
    PALETTE,
    Figure,
    chart,
    colormaps,
    ignore_missing_glyphs,
    literal,
)
from vit_train.loop.metrics import Floats, Integers, Predictions
from vit_train.model.build import images_at_once
from vit_train.model.vit import Encoder, VisionTransformer
from vit_train.tasks import Task

# The colors of correct and of wrong predictions.
RIGHT = PALETTE[2]
WRONG = PALETTE[3]
# Colors for a map's values: perceptually uniform, and also readable in gray.
HEAT = "magma"
# In inches: an image's side, a line below it, the gap between images, and a section's title.
SIDE = 1.5
LINE = 0.17
GAP = 0.14
TITLE = 0.4
# The size of a line's font, in points.
FONT = 7.5


# A uint8 image (3,H,W), and the lines of text below it with their colors.
Labeled = tuple[Tensor, Sequence[tuple[str, str]]]


def draw_sheet(
    sections: Mapping[str, Sequence[Labeled]],
    columns: int = 6,
    side: float = SIDE,
    legend: str = "",
) -> Figure:
    """Draw sections of labeled images, each below its title; a title may be "".

    All images have the same shape, and are `side` inches high. A `legend` adds a color scale for
    maps, with this text. All images share one Axes, whose units are inches from the upper left
    corner, because laying out an Axes for each image would take a second.
    """
    labeled = [each for part in sections.values() for each in part]
    lines = max((len(lines) for _, lines in labeled), default=0)
    image_width = side * max((image.shape[2] / image.shape[1] for image, _ in labeled), default=1)
    row_height = side + (0.08 + LINE * lines if lines else 0) + GAP
    sheet_width = columns * (image_width + GAP) + GAP
    figure = Figure(dpi=110)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    top = 0.0
    for title, part in sections.items():
        heading = literal(f"{title}: none" if title and not part else title)
        axes.text(GAP, top + TITLE / 2, heading, fontsize=12, weight="bold", va="center")
        top += TITLE if title else GAP
        for place, (image, lines_below) in enumerate(part):
            left = GAP + place % columns * (image_width + GAP)
            upper = top + place // columns * row_height
            extent = (left, left + image_width, upper + side, upper)
            axes.imshow(
                image.permute(1, 2, 0).cpu().numpy(), interpolation="nearest", extent=extent
            )
            for number, (words, color) in enumerate(lines_below):
                middle = upper + side + 0.11 + LINE * number
                axes.text(left, middle, literal(words), color=color, va="center", fontsize=FONT)
        top += row_height * -(-len(part) // columns)
    if legend:
        draw_scale(axes, sheet_width, top, legend)
        top += 0.75  # enough for three lines
    figure.set_size_inches(sheet_width, top)
    axes.set(xlim=(0, sheet_width), ylim=(top, 0))
    return figure


def draw_scale(axes: Axes, sheet_width: float, top: float, legend: str) -> None:
    """Draw the color scale of maps on a sheet, `top` inches from its top."""
    middle = sheet_width / 2
    reach = min(1.5, sheet_width / 9)
    extent = (middle - reach, middle + reach, top + 0.17, top + 0.05)
    axes.imshow(np.arange(256)[None], cmap=HEAT, extent=extent)
    for x, y, text, ha, va in (
        (middle - reach - 0.06, 0.11, "0", "right", "center"),
        (middle + reach + 0.06, 0.11, "highest of each map", "left", "center"),
        (middle, 0.24, fill(literal(legend), int(13 * sheet_width)), "center", "top"),
    ):
        axes.text(x, top + y, text, fontsize=8, ha=ha, va=va)


def class_line(who: str, name: str, chance: float) -> str:
    """Return a line such as "label: cat 12 %"."""
    share = "<1" if chance < 0.005 else f"{100 * chance:.0f}"
    return cut_to_fit(f"{who}: ", name, f" {share} %")


def cut_to_fit(before: str, name: str, after: str = "") -> str:
    """Return a line that fits below an image, with the end of the name cut off if necessary."""
    name = printable(name)[:99]  # no more of a longer name could fit
    line = f"{before}{name}{after}"
    kept = len(name)
    while sum(map(width, line)) > SIDE and kept > 1:
        kept -= 1
        line = f"{before}{name[:kept].rstrip()}…{after}"
    return line


@cache
def width(sign: str) -> float:
    """Return the width that a character adds to a line below an image, in inches."""
    with ignore_missing_glyphs():
        # Between bars, because a space alone has no width.
        size = FontProperties(size=100 * FONT)
        ends, whole = (
            text_to_path.get_text_width_height_descent(text, size, ismath=False)[0]
            for text in ("||", f"|{sign}|")
        )
    return float(whole - ends) / 100 / 72


def image_grid(
    images: Tensor,
    labels: Sequence[Sequence[str]],
    columns: int = 6,
    side: float = SIDE,
    title: str = "",
    legend: str = "",
) -> Figure:
    """Draw uint8 images (N,3,H,W), each above the lines of its label."""
    labeled = [
        (image, [(line, "black") for line in lines])
        for image, lines in zip(images, labels, strict=True)
    ]
    return draw_sheet({title: labeled}, columns, side, legend)


def label_lines(target: Tensor, classes: Sequence[str]) -> list[str]:
    """Return a label's class as a line; for a mixed label (K,), a line for each class's share."""
    shares = target.tolist() if target.ndim else [int(target) == n for n in range(len(classes))]
    return [
        cut_to_fit("", name, f" {share:.0%}" if share <= 0.995 else "")
        for share, name in sorted(zip(shares, classes, strict=True), reverse=True)
        if share >= 0.005
    ] or ["no label"]


def captioned(
    images: ImageSet,
    answers: Mapping[str, tuple[Integers, Floats]],
    classes: Sequence[str],
    chosen: Iterable[int],
) -> list[Labeled]:
    """Return the chosen images, each above the answers and, if it has one, the name of its file.

    `answers` maps "label" and the names of models to pairs: the labels or the predicted classes
    (N,), and the probabilities of all classes (N,K).
    """
    found: list[Labeled] = []
    for index in chosen:
        lines = []
        for who, (given, chances) in answers.items():
            right = RIGHT if given[index] == images.labels[index] else WRONG
            color = "black" if who == "label" else right
            name = classes[given[index]]
            lines.append((class_line(who, name, chances[index, given[index]]), color))
        if isinstance(file := images.all_names[index], str):
            lines.append(name_line(file))
        found.append((images.images[index], lines))
    return found


def name_line(name: str) -> tuple[str, str]:
    """Return the name of an image's file as a line, with the start of a long path cut off."""
    return cut_to_fit("", name[::-1])[::-1], PALETTE[5]


def highest(values: Floats, among: np.ndarray, count: int = 12) -> list[int]:
    """Return the indices of the `count` highest values (N,), highest first.

    Ignore values where `among` (N,) is False.
    """
    order: Integers = np.argsort(-values, kind="stable")
    return list(map(int, order[among[order]][:count]))


def mistakes(predictions: Predictions) -> dict[str, list[int]]:
    """Return the indices of the most wrong and of the least sure right predictions, by title."""
    best = np.sort(predictions.log_probabilities, axis=1)
    return {
        "Most wrong: the true class has the lowest probability": highest(
            predictions.losses, ~predictions.correct
        ),
        "Right, but least sure: the second class comes closest": highest(
            best[:, -2] - best[:, -1], predictions.correct
        ),
    }


def draw_mistakes(predictions: Predictions, images: ImageSet, classes: Sequence[str]) -> Figure:
    """Draw the images with the most wrong and with the least sure right predictions.

    Below each image are its true class, the predicted class or, if that is right, the second, and
    the name of its file, if it has one.
    """
    chances = np.exp(predictions.log_probabilities)
    found = mistakes(predictions).items()
    answers = zip(found, ("model", "second"), predictions.top(2).T, strict=True)
    return draw_sheet(
        {
            title: captioned(
                images,
                {"label": (predictions.labels, chances), who: (given, chances)},
                classes,
                chosen,
            )
            for (title, chosen), who, given in answers
        }
    )


# The opacity of the map's colors over the gray image where the map is 0, and the additional opacity
# where the map is highest.
COVER = 0.3
MORE = 0.5


def draw_maps(
    images: Tensor, maps: Tensor, lines: Sequence[Sequence[str]], legend: str, columns: int = 3
) -> Figure:
    """Draw uint8 images (N,3,H,W) beside copies overlaid with their maps, (N,R,C) or (N,M,R,C).

    The color scale of each map ranges from 0 to its highest value. `lines` holds the text below
    each image.
    """
    images = images.cpu()
    maps = maps.reshape(len(maps), -1, *maps.shape[-2:])
    shown = side_by_side([images, *(covered(images, each) for each in maps.unbind(1))])
    # `columns` is for one map, two pictures side by side; with more maps, fewer columns fit.
    columns = math.ceil(2 * columns / (1 + maps.shape[1]))
    return image_grid(shown, lines, min(columns, len(images)), legend=legend)


def covered(images: Tensor, maps: Tensor) -> Tensor:
    """Return the uint8 images (N,3,H,W) in gray, overlaid with the colors of their maps (N,R,C)."""
    maps = maps.cpu().float()
    values = maps / maps.amax(dim=(1, 2), keepdim=True).clamp(min=1e-12)
    values = F.interpolate(values.unsqueeze(1).clamp(0, 1), images.shape[2:])  # (N,1,H,W)
    colors = torch.from_numpy(colormaps[HEAT](values.squeeze(1).numpy())[..., :3])
    cover = COVER + MORE * values
    gray = images.float().mean(dim=1, keepdim=True)
    return (cover * 255 * colors.permute(0, 3, 1, 2) + (1 - cover) * gray).byte()


def side_by_side(pictures: Sequence[Tensor]) -> Tensor:
    """Join each image's uint8 pictures (N,3,H,W) side by side, separated by white lines."""
    line = max(1, pictures[0].shape[-1] // 32)
    return torch.cat([F.pad(each, (0, line), value=255) for each in pictures], 3)[..., :-line]


# The most images, pictures in a row, and rows on a page; a picture's side in inches.
GALLERY = 12
ACROSS = 12
ROWS = 4
PICTURE = 0.77


def gallery_size(task: Task, model: nn.Module) -> int:
    """Return the number of images to draw.

    It is 0 for a task without pictures, and if one image's attention takes too much memory.
    """
    if not task.columns:
        return 0
    most = min(GALLERY, images_across(task) * ROWS)
    return min(most, images_at_once(model)) if isinstance(model, VisionTransformer) else most


def images_across(task: Task) -> int:
    return max(1, ACROSS // len(task.columns))


@torch.no_grad()
def draw_gallery(task: Task, model: nn.Module, batch: Batch, normalize: Normalize) -> Figure:
    """Draw a batch's images and the task's pictures of them; the model must be in eval mode."""
    images, targets = batch
    first, *others = task.pictures(model, images, targets)
    plain = normalize.undo(first).cpu()
    drawn = (
        normalize.undo(each).cpu() if each.ndim == 4 else covered(plain, each) for each in others
    )
    shown = side_by_side([plain, *drawn])
    title = f"From left to right: {', '.join(task.columns)}"
    return image_grid(shown, [[]] * len(shown), images_across(task), PICTURE, title, task.legend)


def draw_distances(layers: Sequence[Sequence[float]], image_size: int, even: float) -> Figure:
    """Draw each head's mean attention distance, by layer (Dosovitskiy et al. 2021, figure 7).

    `even` is the distance for a head that attends to all patches equally.
    """
    figure, axes = chart(5.2, 3.6)
    for number, heads in enumerate(layers, start=1):
        axes.plot([number] * len(heads), sorted(heads), "o", color="#3b6ea5", alpha=0.75)
    axes.set(xlabel="layer", ylabel="mean attention distance, pixels", ylim=(0, 0.75 * image_size))
    axes.set_title("one dot for each head", fontsize=9)
    axes.set_xticks(range(1, len(layers) + 1))
    axes.axhline(even, linestyle="--", linewidth=1, color="gray", label="uniform attention")
    axes.legend(fontsize=8, frameon=False)
    return figure


def draw_filters(filters: Tensor, shares: Sequence[float]) -> Figure:
    """Draw principal components (K,3,P,P) of the patch embedding's filters.

    `shares` holds the share of the filters' variance that each component explains.
    """
    most = filters.abs().amax(dim=(1, 2, 3), keepdim=True).clamp(min=1e-12)
    pixels = (127.5 * (1 + filters / most)).round().byte()
    labels = [[f"{100 * share:.1f} %"] for share in shares]
    title = "Principal components of the filters, and their shares of variance"
    return image_grid(pixels, labels, columns=7, side=PICTURE, title=title)


def mosaic(positions: Tensor, grid: Size) -> Tensor:
    """Arrange the cosine similarities of position embeddings (N,D) as a grid of maps.

    The grid and each map have R rows and C columns, those of the patches, so N is R·C. The map in
    row i, column j of the grid shows the similarity between the patch in row i, column j of the
    image and every patch. Lines of NaN separate the maps: (R·(R + 1) − 1, C·(C + 1) − 1).
    """
    directions = F.normalize(positions, dim=1)
    rows, columns = grid
    alike = directions @ directions.t()
    maps = alike.view(*grid, *grid)  # row, column, other row, other column
    maps = F.pad(maps, (0, 1, 0, 1), value=float("nan"))
    return maps.permute(0, 2, 1, 3).reshape(rows * (rows + 1), columns * (columns + 1))[:-1, :-1]


# With more patches, their maps are too small to see, and the similarities take gigabytes.
MOST_PLACES = 48**2


def has_position_table(encoder: Encoder) -> bool:
    """Return True if the encoder has a table of positions, with at most MOST_PLACES patches."""
    return len(encoder.pos_embed) > 0 and math.prod(encoder.grid) <= MOST_PLACES


@torch.no_grad()
def draw_positions(encoder: Encoder) -> Figure:
    """Draw the encoder's first table of position embeddings, and the similarities between patches.

    The similarities are drawn as in figure 7 (middle) of Dosovitskiy et al. 2021.
    """
    table = encoder.pos_embed[0]()[0].float().cpu()  # (T,D)
    alike = mosaic(table[-math.prod(encoder.grid) :], encoder.grid)
    figure = Figure(figsize=(10, 4.6), dpi=110, layout="constrained")
    values, places = figure.subplots(1, 2)
    most = table.abs().quantile(0.99).item()
    image = values.imshow(
        table.numpy(), cmap="RdBu", vmin=-most, vmax=most, aspect="auto", interpolation="nearest"
    )
    values.set(
        title=f"position embeddings ({encoder.config.positions})", xlabel="value", ylabel="token"
    )
    figure.colorbar(image, ax=values, shrink=0.8)
    image = places.imshow(alike.numpy(), cmap="viridis", vmax=1)
    places.set(title="each patch's cosine similarity to all patches", xticks=[], yticks=[])
    places.spines[:].set_visible(False)
    figure.colorbar(image, ax=places, shrink=0.8)
    return figure
