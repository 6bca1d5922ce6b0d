"""Training batches: augmented images, in a new order in each epoch."""

import copy
import math
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vit_train.data.augment.config import AugmentConfig
from vit_train.data.augment.operations import Round, apply_round
from vit_train.data.augment.policies import POLICIES
from vit_train.data.augment.regions import (
    Cropper,
    Cuts,
    Mixer,
    Mixture,
    Rectangles,
    one_hot_targets,
    random_crops,
    random_holes,
    resized_crop,
    take,
)
from vit_train.data.batches import Batch, DrawnBatches, Draws, Normalize
from vit_train.data.dataset import ImageSet
from vit_train.data.splits import strata


def shuffled(labels: Tensor, rng: np.random.Generator) -> Tensor:
    """Return the indices of all images (N,) in a random order."""
    return torch.from_numpy(rng.permutation(len(labels)))


def balanced(labels: Tensor, rng: np.random.Generator) -> Tensor:
    """Return N image indices in random order, equally many of each class, for labels (N,).

    The numbers of images of any two classes differ by at most one. Images of a small class repeat,
    each equally often, give or take one. From a large class, a random sample is taken.
    """
    classes = [np.flatnonzero(labels.numpy() == label) for label in labels.unique().tolist()]
    counts = np.full(len(classes), len(labels) // len(classes))
    counts[rng.permutation(len(classes))[: len(labels) % len(classes)]] += 1
    taken = []
    for members, count in zip(classes, counts, strict=True):
        rounds = [rng.permutation(members) for _ in range(-(-count // len(members)))]
        taken.append(np.concatenate(rounds)[:count])
    return torch.from_numpy(rng.permutation(np.concatenate(taken)))


# The choices of data.sampler.
ORDERS = {"shuffled": shuffled, "balanced": balanced}


class Drawn(NamedTuple):
    """The random draws of a batch, in the order of the augmentation steps; None for unused steps.

    `images` (B,) are the indices of the images.
    """

    images: Tensor
    cuts: Cuts
    crops: Rectangles | None
    rounds: list[Round]
    holes: Rectangles | None
    mixture: Mixture | None

    def pack(self) -> Tensor:
        """Stack all tensors (B,) into one float64 tensor (F,B), which is exact up to 2⁵³."""
        steps = (self.images,), self.cuts, self.crops, *self.rounds, self.holes, self.mixture
        return torch.stack([field.double() for step in steps for field in step or ()])


class TrainBatches(DrawnBatches):
    """Shuffled, augmented batches; batch b of epoch e is a pure function of the seed, e and b.

    A batch holds images (B,C,H,W) float32, and labels (B,) or, with Mixup, CutMix, tags or weights,
    targets (B,K) (see `weighted`). With several processes, process `rank` of `ranks` makes only its
    share of each batch. An incomplete last batch is dropped; other epochs will include its images.
    A set smaller than `batch_size` makes a single, smaller batch. `sampler` names one of ORDERS.
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
        sampler: str = "shuffled",
    ) -> None:
        super().__init__(device, min(batch_size, len(data)), seed, rank, ranks)
        self.order = partial(ORDERS[sampler], strata(data.labels.cpu()))
        self.labels, self.num_classes = data.labels.to(device), num_classes
        self.weights: Tensor | None = None  # (N,1)
        self.normalize = normalize
        self.augment, self.cropper = augment, Cropper(data.images, augment, device, seed)
        self.size = self.cropper.size
        self.policy = POLICIES[augment.policy](self.size, augment)
        mixes = augment.mixup_alpha is not None or augment.cutmix_alpha is not None
        self.mixer = Mixer(self.size, num_classes, augment) if mixes else None

    def weighted(self, weights: Tensor) -> "TrainBatches":
        """Return the same batches with targets that are multiplied by each image's weight (N,).

        Labels become one-hot rows (B,K) scaled by the image's weight. Tags get a last column of
        ones (B,K+1), scaled likewise. Mixup and CutMix mix these rows.
        """
        batches = copy.copy(self)
        batches.weights = weights.to(self.device).unsqueeze(1)
        return batches

    def __len__(self) -> int:
        return len(self.labels) // self.batch_size

    def draws(self, epoch: int, first: int = 0) -> Iterator[Draws]:
        order = self.order(self.generator(epoch))
        for number in range(first, len(self)):
            index = order[number * self.batch_size : (number + 1) * self.batch_size]
            yield self.draw_batch(index, self.generator(epoch, number), epoch)

    def draw_batch(self, index: Tensor, rng: np.random.Generator, epoch: int = 0) -> Draws:
        """Make the random draws of one batch for this process's share of the images.

        `index` (B,) selects the images of the whole batch. Return the draws, packed as (F,b): F
        numbers for each of the b images that this process makes. With Mixup or CutMix, each image
        is mixed with the image before it, so b includes one more image, the one before this
        process's share. If the data set does not fit on the device, also return the cropped
        images, uint8 (b,C,H,W).
        """
        columns = torch.arange(len(index))[self.share]
        if self.mixer is not None:  # the image before the batch's first one is its last, −1
            columns = torch.cat((columns[:1] - 1, columns))
        packed = self.draw(index, rng, epoch).pack()[:, columns]
        if self.cropper.on_device:
            return (packed,)
        drawn = self.unpack(packed)
        return packed, self.cropper.cut(drawn.images, drawn.cuts)

    def draw(self, index: Tensor, rng: np.random.Generator, epoch: int) -> Drawn:
        """Return the random draws for the images at `index` (B,)."""
        count, size, config = len(index), self.size, self.augment
        alters = epoch < (config.policy_epochs or math.inf)
        return Drawn(
            index,
            self.cropper.draw(rng, index, epoch),
            random_crops(rng, count, size, config.crop_scale) if config.crop_scale else None,
            self.policy.rounds(rng, count) if alters else self.policy.identity_rounds(count),
            random_holes(rng, count, size, config) if config.erase_prob else None,
            self.mixer.draw(rng, count, epoch) if self.mixer else None,
        )

    def unpack(self, packed: Tensor) -> Drawn:
        """Return the draws (F,b) that `Drawn.pack` has packed."""
        rows, config = iter(packed.unbind()), self.augment
        return Drawn(
            next(rows).long(),
            take(rows, Cuts),
            take(rows, Rectangles) if config.crop_scale else None,
            [take(rows, Round) for _ in range(self.policy.num_rounds)],
            take(rows, Rectangles) if config.erase_prob else None,
            take(rows, Mixture) if self.mixer else None,
        )

    def batch(self, *draws: Tensor) -> Batch:
        packed, *cropped = draws  # (F,b), and perhaps images uint8 (b,C,H,W)
        drawn = self.unpack(packed)
        images = cropped[0] if cropped else self.cropper.cut(drawn.images, drawn.cuts)
        if drawn.crops:
            images = resized_crop(images, drawn.crops)
        for each in drawn.rounds:
            images = apply_round(images, each)
        pixels = self.normalize(images)
        if drawn.holes:  # 0 is the mean color
            pixels.masked_fill_(drawn.holes.contain(self.size), 0)
        labels = self.labels[drawn.images]
        if self.weights is not None:
            if labels.ndim == 2:
                labels = F.pad(labels, (0, 1), value=1)
            labels = one_hot_targets(labels, self.num_classes) * self.weights[drawn.images]
        if self.mixer is None or drawn.mixture is None:
            return pixels, labels
        mixture = Mixture(*(field[1:] for field in drawn.mixture))
        return self.mixer.mix(pixels[1:], labels[1:], pixels[:-1], labels[:-1], mixture)
