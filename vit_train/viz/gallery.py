"""A gallery: one picture of a model's results on a few images."""

from PIL import Image
from torch import nn, no_grad

from vit_train.data.batches import Batch, Normalize
from vit_train.model.memory import images_at_once
from vit_train.model.vit import VisionTransformer
from vit_train.tasks.task import Task
from vit_train.viz.mosaic import side_by_side

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
    shown = [normalize.undo(picture) for picture in task.pictures(model, images, targets)]
    return side_by_side(shown, task.columns, pictures_across(task))
