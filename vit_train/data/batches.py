"""The batches of an epoch: random numbers are drawn on the CPU, images are made on the device."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from vit_train.base.log import logger
from vit_train.base.memory import gigabytes
from vit_train.data.dataset import ImageSet, Statistics, select

Batch = tuple[Tensor, Tensor]
# The random draws for a batch, made on the CPU before the batch is made on the device.
Draws = tuple[Tensor, ...]


# The share of a GPU's free memory for images; the rest is for the model and its activations.
SHARE = 0.5


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on the device.

    Copies from the CPU to a GPU use pinned memory, so that the CPU does not wait.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def place(images: Tensor, device: torch.device, purpose: str) -> Tensor:
    """Move a data set's images to the device; if they do not fit, warn and return them unmoved.

    The images do not fit if they need more than SHARE of the free GPU memory. The warning says "the
    images for PURPOSE".
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # memory that an earlier run in this process has freed; PyTorch reuses it
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        if images.nbytes > SHARE * free:
            logger.warning(
                f"the images for {purpose} take {gigabytes(images.nbytes)}, more than "
                f"{SHARE:.0%} of the {gigabytes(free)} of free GPU memory: the images stay in main "
                "memory, and each batch is copied to the GPU"
            )
            return images
    return images.to(device)


class Normalize(nn.Module):
    """Normalizes uint8 (B,C,H,W) to float32 with the mean and std of each channel."""

    def __init__(self, statistics: Statistics, device: torch.device | str = "cpu") -> None:
        super().__init__()
        mean, std = (torch.tensor(values, device=device).view(-1, 1, 1) for values in statistics)
        self.scale, self.shift = nn.Buffer(1 / (255 * std)), nn.Buffer(-mean / std)  # (C,1,1)

    def forward(self, images: Tensor) -> Tensor:
        return images.float().mul_(self.scale).add_(self.shift)

    def undo(self, pixels: Tensor) -> Tensor:
        """Convert normalized float32 (B,C,H,W) back to uint8, for display."""
        return ((pixels - self.shift) / self.scale).round_().clamp_(0, 255).to(torch.uint8)


class DrawnBatches(ABC):
    """Base class of training batches, which are made in two steps.

    `draws` draws all random numbers on the CPU, so that every device sees the same images. `batch`
    makes the images from these numbers on the device, without waiting for the device. All batches
    have the same shapes, so that a GPU can replay the work as a CUDA graph.
    """

    def __init__(
        self, device: torch.device, batch_size: int, seed: int, rank: int, ranks: int
    ) -> None:
        """Prepare this process's share of each batch of `batch_size` images.

        This process is number `rank` of `ranks`, counted from 0.
        """
        self.device, self.batch_size, self.seed = device, batch_size, seed
        self.rank, self.ranks = rank, ranks
        # The part of a batch that this process makes.
        self.share = slice(rank * batch_size // ranks, (rank + 1) * batch_size // ranks)

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches in an epoch."""

    def generator(self, *place: int) -> np.random.Generator:
        """Return a random generator that depends only on the seed and the numbers in `place`.

        For an epoch, `place` is its number; for a batch, the numbers of the epoch and the batch.
        """
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=place))

    @abstractmethod
    def draws(self, epoch: int, first: int = 0) -> Iterator[Draws]:
        """Yield the random draws, on the CPU, for an epoch's batches from batch `first` on.

        There is one tuple of tensors per batch. Batches are numbered from 0.
        """

    @abstractmethod
    def batch(self, *draws: Tensor) -> Batch:
        """Make a batch on the device from its random draws, which are also on the device."""

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from batch number `first` on; numbers start at 0."""
        for draws in self.draws(epoch, first):
            yield self.batch(*(to_device(each, self.device) for each in draws))


class EvalBatches:
    """Yields all images once, in order and without augmentation.

    With several processes, process `rank` of `ranks` gets only its share of the images.
    """

    def __init__(
        self,
        data: ImageSet,
        normalize: Normalize,
        batch_size: int,
        device: torch.device,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.total = len(data)
        self.share = slice(rank * self.total // ranks, (rank + 1) * self.total // ranks)
        self.images = place(select(data.images, self.share), device, "evaluation")
        self.labels = data.labels[self.share].to(device)
        self.normalize = normalize
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[Batch]:
        for images, labels in zip(
            self.images.split(self.batch_size), self.labels.split(self.batch_size), strict=True
        ):
            yield self.normalize(to_device(images, labels.device)), labels
