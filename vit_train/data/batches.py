"""Batches cut from tensors on the model's device, without workers or per-image Python."""

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from vit_train.data.augment.config import AugmentConfig
from vit_train.data.augment.cropping import Cropper, Cuts
from vit_train.data.augment.erasing import Eraser
from vit_train.data.augment.mixing import Mixer, Mixture
from vit_train.data.augment.operations import apply_operations
from vit_train.data.augment.policies import POLICIES, Round
from vit_train.data.augment.rectangles import Rectangles
from vit_train.data.augment.to_device import to_device
from vit_train.data.dataset import ImageSet, Statistics

Batch = tuple[Tensor, Tensor]


class Normalize:
    """Normalizes uint8 (B,C,S,S) to float32: each channel of the training set has mean 0, std 1."""

    def __init__(self, statistics: Statistics, device: torch.device) -> None:
        mean, std = (torch.tensor(values, device=device).view(-1, 1, 1) for values in statistics)
        self.scale = 1 / (255 * std)
        self.shift = -mean / std

    def __call__(self, images: Tensor) -> Tensor:
        return images.float().mul_(self.scale).add_(self.shift)

    def undo(self, pixels: Tensor) -> Tensor:
        """Convert normalized float32 (B,C,S,S) back to uint8, for display."""
        return ((pixels - self.shift) / self.scale).round_().clamp_(0, 255).to(torch.uint8)


class TrainBatches:
    """Shuffled, augmented batches; batch b of epoch e is a pure function of the seed, e and b.

    All random numbers are drawn on the CPU for the whole batch, so that every device sees the same
    images. With several processes, each makes its share, `rank` of `ranks`, of one batch. An
    incomplete last batch is dropped (another epoch's order will include its images), unless the
    whole set is smaller than one batch.
    """

    def __init__(
        self,
        data: ImageSet,
        num_classes: int,
        normalize: Normalize,
        augment: AugmentConfig,
        batch_size: int,
        seed: int,
        device: torch.device,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        self.images_per_epoch = len(data)
        self.labels = data.labels.to(device)
        self.normalize = normalize
        self.batch_size = min(batch_size, len(data))
        self.seed, self.rank, self.ranks = seed, rank, ranks
        size = data.images.shape[-1]
        self.cropper = Cropper(data.images.to(device), augment)
        self.policy = POLICIES[augment.policy](size, augment)
        self.eraser = Eraser(size, augment) if augment.erase_prob else None
        mixes = augment.mixup_alpha is not None or augment.cutmix_alpha is not None
        self.mixer = Mixer(size, num_classes, augment) if mixes else None

    def __len__(self) -> int:
        return self.images_per_epoch // self.batch_size

    @property
    def left_out(self) -> int:
        """Return the number of images in the incomplete last batch, which an epoch drops."""
        return self.images_per_epoch % self.batch_size

    @property
    def share(self) -> slice:
        """Return the slice of a batch that this process makes."""
        count = self.batch_size
        return slice(self.rank * count // self.ranks, (self.rank + 1) * count // self.ranks)

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yield (images (B,C,S,S) float32, labels (B,) or mixed targets (B,K)) of this epoch.

        The first batch is number `first`.
        """
        order = torch.from_numpy(self.generator(epoch).permutation(self.images_per_epoch))
        for number in range(first, len(self)):
            index = order[number * self.batch_size : (number + 1) * self.batch_size]
            yield self.batch(index, self.generator(epoch, number))

    def generator(self, *place: int) -> np.random.Generator:
        """Return the generator of an epoch, or of a batch in it; no two give the same numbers."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=place))

    def batch(self, index: Tensor, rng: np.random.Generator) -> Batch:
        """Make this process's share of the batch of images at `index` (B,)."""
        count = len(index)
        cuts, boxes = self.cropper.draw(rng, count)
        rounds = self.policy.rounds(rng, count)
        erased = self.eraser.draw(rng, count) if self.eraser else None
        mixture = self.mixer.draw(rng, count) if self.mixer else None

        # Each image is mixed with the one before it, so that one is made, too; −1 is the last.
        indices = torch.arange(count)[self.share]
        if mixture is not None:
            indices = torch.cat((indices[:1] - 1, indices))
        index = to_device(index[indices], self.labels.device)
        images = self.cropper.cut(index, gather(cuts, indices), boxes and gather(boxes, indices))
        for operations in rounds:
            images = apply_operations(images, *gather(operations, indices))
        pixels = self.normalize(images)
        if self.eraser and erased is not None:
            pixels = self.eraser.erase(pixels, gather(erased, indices))
        labels = self.labels[index]
        if self.mixer is None or mixture is None:
            return pixels, labels
        return self.mixer.mix(
            pixels[1:], labels[1:], pixels[:-1], labels[:-1], gather(mixture, indices[1:])
        )


Drawn = TypeVar("Drawn", Cuts, Rectangles, Round, Mixture)


def gather(drawn: Drawn, rows: Tensor) -> Drawn:
    """Select these rows of what was drawn for a batch."""
    return type(drawn)(*(field[rows] for field in drawn))


class EvalBatches:
    """Every image once, in order and unaugmented; with several processes, each has its share."""

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
        self.images = data.images[self.share].to(device)
        self.labels = data.labels[self.share].to(device)
        self.normalize = normalize
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[Batch]:
        for images, labels in zip(
            self.images.split(self.batch_size), self.labels.split(self.batch_size), strict=True
        ):
            yield self.normalize(images), labels
