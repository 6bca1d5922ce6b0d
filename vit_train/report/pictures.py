"""Pictures and figures of a model's results on validation images, drawn after epochs."""

from collections.abc import Callable, Iterable
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image
from torch import nn

from vit_train.engine.callbacks import Callback, TrainLog
from vit_train.engine.metrics import Evaluation
from vit_train.engine.time_share import TimeShare
from vit_train.engine.trainer import Trainer
from vit_train.files.writing import replacing
from vit_train.report.tensorboard import TensorBoard

# Of the time that the pictures, and the figures, may take.
SHARE = 0.005
# Draws a model's results on the same images each time.
Draw = Callable[[nn.Module], Image.Image]
# Draws figures of a validation's result, each with its name.
DrawFigures = Callable[[nn.Module, Evaluation], Iterable[tuple[str, Figure]]]


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
        self.board.picture("val/pictures", picture, step)


class Figures(Callback):
    """Writes figures of the validation to TensorBoard, as often as `Pictures` writes pictures."""

    def __init__(self, draw: DrawFigures, board: TensorBoard) -> None:
        self.draw, self.board = draw, board
        self.time = TimeShare(SHARE)

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        if val is not None and (self.time.is_due or trainer.finished):
            with self.time.spent():
                for name, figure in self.draw(trainer.eval_model, val):
                    self.board.figure(f"val/{name}", figure, log.step)
