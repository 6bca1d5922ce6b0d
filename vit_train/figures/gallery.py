"""Galleries: a task's pictures of a few images, composed from pixels."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor, nn, no_grad

from vit_train.data.batches import Batch, Normalize
from vit_train.figures.heatmaps import ENDS, color_scale, covered
from vit_train.model.cost import images_at_once
from vit_train.model.vit import VisionTransformer
from vit_train.tasks.task import Task

# In pixels: the approximate width to which small pictures are enlarged (by a whole factor), the
# gaps between pictures and between images, the height of the titles, and of a scale's bar.
PICTURE, GAP, WIDE_GAP, TITLE, BAR = 96, 2, 14, 20, 10
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
    shape = step * min(across, number) - WIDE_GAP, rows * (size + WIDE_GAP) + TITLE
    sheet = Image.new("RGB", shape, "white")
    draw = ImageDraw.Draw(sheet)
    for place, tile in enumerate(tiles):
        image, kind = divmod(place, kinds)
        row, column = divmod(image, across)
        left, top = column * step + kind * (size + GAP), row * (size + WIDE_GAP) + TITLE
        sheet.paste(Image.fromarray(tile.permute(1, 2, 0).numpy()), (left, top))
        if row == 0:
            middle = left + size // 2, TITLE // 2
            draw.text(middle, titles[kind], fill="black", anchor="mm", font_size=FONT)
    return sheet


def with_scale(
    sheet: Image.Image, colors: NDArray[np.uint8], ends: tuple[str, str], legend: str
) -> Image.Image:
    """Return the sheet with a scale of `colors` (N,3) below it, its ends named, and a legend."""
    width, top = sheet.size
    whole = Image.new("RGB", (width, top + 2 * TITLE), "white")
    whole.paste(sheet)
    left, right, middle = 2 * width // 5, 3 * width // 5, top + TITLE // 2
    bar = Image.fromarray(colors[None]).resize((right - left, BAR))
    whole.paste(bar, (left, middle - BAR // 2))
    draw = ImageDraw.Draw(whole)
    for place, words, anchor in (
        ((left - 6, middle), ends[0], "rm"),
        ((right + 6, middle), ends[1], "lm"),
        ((width // 2, middle + TITLE), legend, "mm"),
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
