"""Pictures of a model's results on some validation images, drawn after epochs."""

from collections.abc import Callable
from pathlib import Path

from PIL import Image
from torch import nn

from vit_train.engine.callbacks import Callback, TrainLog
from vit_train.engine.metrics import Evaluation
from vit_train.engine.time_share import TimeShare
from vit_train.engine.trainer import Trainer
from vit_train.files.writing import replacing
from vit_train.report.tensorboard import TensorBoard

# Of the time that drawing may take.
SHARE = 0.01
# Draws a model's results on the same images each time.
Draw = Callable[[nn.Module], Image.Image]


class Pictures(Callback):
    """Writes every picture to TensorBoard, and the latest one also to a file.

    There is one after the first and the last epoch, and after as many of the others as take SHARE
    of the time.
    """

    def __init__(self, draw: Draw, board: TensorBoard, path: Path) -> None:
        self.draw, self.board, self.path = draw, board, path
        self.time = TimeShare(SHARE)

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        if self.time.is_due or trainer.finished:
            with self.time.spent():
                self.write(self.draw(trainer.eval_model), log.step)

    def write(self, picture: Image.Image, step: int) -> None:
        with replacing(self.path) as file:
            picture.save(file, "PNG")
        self.board.picture("pictures", picture, step)
