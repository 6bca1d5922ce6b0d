"""The interface between the training loop and its data."""

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

Batch = tuple[Tensor, Tensor]


class TrainLoader(Protocol):
    """The training data as the loop reads it: see `vit_train.data.batches.DrawnBatches`."""

    @property
    def batch_size(self) -> int:
        """Return the number of images per step, over all processes."""
        ...

    def __len__(self) -> int: ...
    def draws(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """Yield what is drawn on the CPU for the batches of an epoch, from number `first` on."""
        ...

    def batch(self, *draws: Tensor) -> Batch:
        """Make a batch from its draws, which are on the device."""
        ...

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, from number `first` on."""
        ...
