"""Batches cut from tensors that live where the model lives: no workers, no per-image Python."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from vit_train.data.config import AugmentConfig
from vit_train.data.dataset import ImageSet, Statistics

Batch = tuple[Tensor, Tensor]


class Normalise:
    """uint8 (B,C,S,S) → float32, each channel with the training set's mean 0 and std 1."""

    def __init__(self, statistics: Statistics, device: torch.device) -> None:
        mean, std = (torch.tensor(each, device=device).view(-1, 1, 1) for each in statistics)
        self.scale = 1 / (255 * std)
        self.shift = -mean / std

    def __call__(self, images: Tensor) -> Tensor:
        return images.float().mul_(self.scale).add_(self.shift)


class TrainBatches:
    """Shuffled, augmented batches; epoch e is a pure function of the seed and e.

    An incomplete last batch is left out (its images come in another epoch's order), unless the
    whole set is smaller than one batch.
    """

    def __init__(
        self,
        data: ImageSet,
        normalise: Normalise,
        augment: AugmentConfig,
        batch_size: int,
        seed: int,
        device: torch.device,
    ) -> None:
        self.labels = data.labels.to(device)
        self.normalise = normalise
        self.flip = augment.flip
        self.batch_size = min(batch_size, len(data))
        self.seed = seed
        self.device = device
        self.shifts = 2 * augment.crop_padding + 1
        size = data.images.shape[-1]
        padded = F.pad(data.images.to(device), (augment.crop_padding,) * 4)
        # Every crop of every image, as a view: (N,C,shifts,shifts,S,S).
        self.crops = padded.unfold(2, size, 1).unfold(3, size, 1)

    def __len__(self) -> int:
        return len(self.labels) // self.batch_size

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield (images (B,C,S,S) float32, labels (B,)) in this epoch's order."""
        generator = torch.Generator(self.device).manual_seed(self.seed * 1_000_003 + epoch)
        order = torch.randperm(len(self.labels), generator=generator, device=self.device)
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            index = order[start : start + self.batch_size]
            yield self.normalise(self.augmented(index, generator)), self.labels[index]

    def augmented(self, index: Tensor, generator: torch.Generator) -> Tensor:
        """Each image's own crop and flip: (B,) indices → uint8 (B,C,S,S)."""
        count, device = len(index), self.device
        dy, dx = torch.randint(self.shifts, (2, count), generator=generator, device=device)
        images = self.crops[index, :, dy, dx]
        if self.flip:
            flipped = torch.rand(count, generator=generator, device=device) < 0.5
            images = torch.where(flipped.view(-1, 1, 1, 1), images.flip(-1), images)
        return images


class EvalBatches:
    """Every image once, in order, unaugmented."""

    def __init__(
        self, data: ImageSet, normalise: Normalise, batch_size: int, device: torch.device
    ) -> None:
        self.images = data.images.to(device)
        self.labels = data.labels.to(device)
        self.normalise = normalise
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[Batch]:
        for images, labels in zip(
            self.images.split(self.batch_size), self.labels.split(self.batch_size), strict=True
        ):
            yield self.normalise(images), labels
