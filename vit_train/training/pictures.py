"""The pictures that a run shows in TensorBoard during training."""

from pathlib import Path

from torch import nn

from vit_train.base.text import shortened
from vit_train.base.writing import replacing
from vit_train.data.batches import Batch, to_device
from vit_train.data.dataset import ImageSet
from vit_train.data.splits import sample
from vit_train.engine.metrics import Classification, Evaluation
from vit_train.engine.trainer import Callback, Trainer, TrainLog
from vit_train.figures.charts import Figure
from vit_train.figures.maps import draw_gallery, draw_maps, gallery_size
from vit_train.figures.measures import FIGURES
from vit_train.figures.sheet import draw_mistakes, image_grid, label_lines
from vit_train.model.build import images_at_once
from vit_train.model.vit import VisionTransformer
from vit_train.training.checkpoints import TimeShare
from vit_train.training.reports import TensorBoard
from vit_train.training.setup import Setup

# The largest share of the time for pictures.
SHARE = 0.005
# Number of images from the first batch to show.
FIRST = 18
# Number of images to show with the patches behind their predictions, one below the other: a card in
# TensorBoard is as wide as one of them.
SHOWN = 4


class Pictures(Callback):
    """Adds figures of the results to TensorBoard after the first, the last and some other epochs.

    The other epochs are chosen so that drawing takes at most SHARE of the time. The file `path`
    holds the latest gallery: images beside the task's pictures of them, such as reconstructions.
    """

    def __init__(self, setup: Setup, board: TensorBoard, path: Path) -> None:
        self.setup, self.board, self.path = setup, board, path
        self.time = TimeShare(SHARE)
        self.unwritten: bytes | None = None
        self.batch: Batch | None = None
        if setup.task.columns and gallery_size(setup.task, setup.model):
            self.batch = next(iter(setup.val_loader or setup.unaugmented(setup.splits.train)))

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        if self.time.is_due or trainer.finished:
            model = trainer.eval_model
            was_training = model.training
            with self.time.spent():
                self.show(model.eval(), val, log.step)
            model.train(was_training)

    def show(self, model: nn.Module, val: Evaluation | None, step: int) -> None:
        setup, images = self.setup, self.setup.splits.val
        if self.batch is not None and len(self.batch[0]):  # this process may have no image
            self.unwritten = self.board.figure(
                "val/pictures", draw_gallery(setup.task, model, self.batch, setup.normalize), step
            )
        if images is None or not isinstance(val, Classification):
            return
        classes, names = setup.data.classes, images.all_names.tolist()
        self.board.figure("val/confusion", FIGURES["confusion"](val.predictions, classes), step)
        self.board.figure(
            "val/mistakes", draw_mistakes(val.predictions, images.images, classes, names), step
        )
        if isinstance(model, VisionTransformer) and (most := images_at_once(model)):
            figure = draw_relevance(setup, model, sample(images, min(SHOWN, most)))
            self.board.figure("val/relevance", figure, step)

    def flush(self) -> None:
        """Write the latest gallery; after an OSError, the next call tries again."""
        if self.unwritten is not None:
            with replacing(self.path) as file:
                file.write(self.unwritten)
            self.unwritten = None


def draw_first_images(setup: Setup) -> Figure:
    """Draw the first images of the first epoch as augmented for training, with their labels."""
    batches = setup.image_loader
    index = batches.order(batches.generator(0))[:FIRST]
    draws = batches.draw(index, batches.generator(0, 0))
    pixels, targets = batches.batch(*(to_device(each, batches.device) for each in draws))
    return image_grid(
        setup.normalize.undo(pixels),
        [label_lines(target, setup.data.classes) for target in targets],
    )


def draw_relevance(setup: Setup, model: VisionTransformer, shown: ImageSet) -> Figure:
    """Draw images beside maps of how much each patch raised the logit of the predicted class."""
    classes = setup.data.classes
    batch = setup.normalize(shown.images.to(setup.precision.device))
    from vit_train.explain.attribution import prediction_maps

    maps, predicted = prediction_maps(model, batch)
    lines = [
        [f"true: {shortened(classes[label])}", f"predicted: {shortened(classes[answer])}"]
        for label, answer in zip(shown.labels.tolist(), predicted.tolist(), strict=True)
    ]
    return draw_maps(
        shown.images,
        maps,
        lines,
        "how much each patch raised the predicted class's logit",
        columns=1,
    )
