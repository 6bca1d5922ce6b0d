"""What a model makes of some images, as a picture."""

from PIL import Image
from torch import nn, no_grad

from vit_train.data.batches import Batch, Normalise
from vit_train.tasks.task import Task
from vit_train.viz.mosaic import side_by_side

# At most so many images, and pictures in a row and rows: what fits a page.
IMAGES, ACROSS, ROWS = 12, 12, 4


@no_grad()
def draw_gallery(task: Task, model: nn.Module, batch: Batch, normalise: Normalise) -> Image.Image:
    """The task's pictures of the batch's first images, side by side."""
    across = max(1, ACROSS // len(task.columns))
    count = min(IMAGES, across * ROWS)
    images, targets = (each[:count] for each in batch)
    was_training = model.training
    model.eval()
    pictures = task.pictures(model, images, targets)
    model.train(was_training)
    shown = [normalise.undo(each) for each in pictures]
    return side_by_side(shown, task.columns, across)
