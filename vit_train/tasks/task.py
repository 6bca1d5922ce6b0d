"""What every task is: an objective for the loop, and what the commands need around it."""

from collections.abc import Iterable
from typing import ClassVar, Protocol

from torch import Tensor, nn

from vit_train.data.batches import Batch, EvalBatches, TrainBatches
from vit_train.engine.objective import Objective
from vit_train.engine.trainer import TrainLoader


class Task(Objective, Protocol):
    """Made from its config, the model's, the images' shape (C,S,S) and the number of classes."""

    # Whether images without labels are of no use.
    needs_labels: ClassVar[bool] = False
    # The pictures that show a result, side by side; none where there is nothing to see.
    columns: tuple[str, ...] = ()
    image_shape: tuple[int, int, int]

    def build_model(self) -> nn.Module:
        """With freshly drawn weights."""
        ...

    def train_loader(self, batches: TrainBatches) -> TrainLoader:
        """The same images with this task's targets, where those are not the labels."""
        return batches

    def eval_loader(self, batches: EvalBatches) -> Iterable[Batch]:
        """As `train_loader`; but an image's targets are the same every time."""
        return batches

    def pictures(self, model: nn.Module, images: Tensor, targets: Tensor) -> list[Tensor]:
        """For each of `columns` the images (B,C,S,S), normalised as the model's input."""
        return []
