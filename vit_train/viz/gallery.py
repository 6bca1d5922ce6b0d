"""A gallery: one picture of a model's results on a few images."""

import torch
from PIL import Image
from torch import Tensor, nn, no_grad

from vit_train.data.batches import Batch, Normalize
from vit_train.model.memory import images_at_once
from vit_train.model.vit import VisionTransformer
from vit_train.tasks.task import Task
from vit_train.viz.heatmaps import ENDS, color_scale, covered
from vit_train.viz.mosaic import side_by_side, with_scale

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
