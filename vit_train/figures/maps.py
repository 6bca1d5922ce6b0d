"""Maps over images, galleries of a task's pictures, and figures of attention and weights."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit_train.base.setting import Size
from vit_train.data.batches import Batch, Normalize
from vit_train.figures.charts import Figure, chart, colormaps
from vit_train.figures.sheet import COLORS, image_grid
from vit_train.model.build import images_at_once
from vit_train.model.vit import Encoder, VisionTransformer
from vit_train.tasks.task import Task

# The share of the gray image that the map's color covers where the map is 0, and the additional
# share where the map is highest.
COVER, MORE = 0.3, 0.5


def draw_maps(
    images: Tensor, maps: Tensor, lines: Sequence[Sequence[str]], legend: str, columns: int = 3
) -> Figure:
    """Draw uint8 images (N,3,H,W) beside copies overlaid with their maps, (N,R,C) or (N,M,R,C).

    The color scale of each map ranges from 0 to its highest value. `lines` holds the text below
    each image.
    """
    maps = maps.reshape(len(maps), -1, *maps.shape[-2:])
    shown = joined([images.cpu(), *(covered(images, each) for each in maps.unbind(1))])
    # `columns` is for one map, two pictures side by side; with more maps, fewer columns fit.
    columns = math.ceil(2 * columns / (1 + maps.shape[1]))
    return image_grid(shown, lines, min(columns, len(images)), legend=legend)


def covered(images: Tensor, maps: Tensor) -> Tensor:
    """Return the uint8 images (N,3,H,W) in gray, overlaid with the colors of their maps (N,R,C)."""
    images, maps = images.cpu().float(), maps.cpu().float()
    values = maps / maps.amax(dim=(1, 2), keepdim=True).clamp(min=1e-12)
    values = F.interpolate(values.unsqueeze(1).clamp(0, 1), images.shape[2:])  # (N,1,H,W)
    colors = torch.from_numpy(colormaps[COLORS](values.squeeze(1).numpy())[..., :3])
    cover = COVER + MORE * values
    gray = images.mean(dim=1, keepdim=True)
    return (cover * 255 * colors.permute(0, 3, 1, 2) + (1 - cover) * gray).byte()


def joined(pictures: Sequence[Tensor]) -> Tensor:
    """Join each image's uint8 pictures (N,3,H,W) side by side, separated by white lines."""
    line = max(1, pictures[0].shape[-1] // 32)
    return torch.cat([F.pad(each, (0, line), value=255) for each in pictures], 3)[..., :-line]


# The most images, pictures in a row and rows that fit on a page, and a picture's side in inches.
IMAGES, ACROSS, ROWS, PICTURE = 12, 12, 4, 0.77


def gallery_size(task: Task, model: nn.Module) -> int:
    """Return the number of images to draw; 0 if one image's attention takes too much memory."""
    most = min(IMAGES, images_across(task) * ROWS)
    return min(most, images_at_once(model)) if isinstance(model, VisionTransformer) else most


def images_across(task: Task) -> int:
    return max(1, ACROSS // len(task.columns))


@torch.no_grad()
def draw_gallery(task: Task, model: nn.Module, batch: Batch, normalize: Normalize) -> Figure:
    """Draw the first images of a batch and the task's pictures; the model must be in eval mode."""
    images, targets = (tensor[: gallery_size(task, model)] for tensor in batch)
    first, *others = task.pictures(model, images, targets)
    plain = normalize.undo(first).cpu()
    shown = joined(
        [
            plain,
            *(normalize.undo(each).cpu() if each.ndim == 4 else covered(plain, each)
              for each in others),
        ]
    )  # fmt: skip
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
    axes.axhline(even, linestyle="--", linewidth=1, color="gray")
    axes.annotate(
        "uniform attention", (1, even), (0, 3), xycoords=axes.get_yaxis_transform(),
        textcoords="offset points", ha="right", fontsize=8, color="gray",
    )  # fmt: skip
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
    directions, (rows, columns) = F.normalize(positions, dim=1), grid
    alike = directions @ directions.t()
    maps = alike.view(*grid, *grid)  # row, column, other row, other column
    maps = F.pad(maps, (0, 1, 0, 1), value=float("nan"))
    return maps.permute(0, 2, 1, 3).reshape(rows * (rows + 1), columns * (columns + 1))[:-1, :-1]


# With more patches, these are too small to see, and their similarities take gigabytes.
MOST_PLACES = 48**2


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
