"""Pictures of a model's results on some validation images, drawn after every epoch."""

from collections.abc import Callable
from pathlib import Path

from PIL import Image
from torch import nn

from vit_train.engine.callbacks import Callback, TrainLog
from vit_train.engine.metrics import Evaluation
from vit_train.engine.trainer import Trainer
from vit_train.files.writing import replacing
from vit_train.report.tensorboard import TensorBoard

# Draws a model's results on the same images each time.
Draw = Callable[[nn.Module], Image.Image]


class Pictures(Callback):
    """Writes every picture to TensorBoard, and the latest one also to a file."""

    def __init__(self, draw: Draw, board: TensorBoard, path: Path) -> None:
        self.draw, self.board, self.path = draw, board, path

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        picture = self.draw(trainer.eval_model)
        with replacing(self.path) as file:
            picture.save(file, "PNG")
        self.board.picture("pictures", picture, log.step)
