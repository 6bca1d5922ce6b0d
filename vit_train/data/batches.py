"""The order in which an epoch takes its images."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from vit_train.data.augment.operations import Round, apply_round
from vit_train.data.augment.policies import POLICIES
from vit_train.data.augment.regions import (
    Cropper,
    Cuts,
    Eraser,
    Mixer,
    Mixture,
    Rectangles,
    ResizedCropper,
    pack,
    resized_crop,
    unpack,
)
from vit_train.data.config import AugmentConfig
from vit_train.data.dataset import ImageSet, Statistics, place, to_device


def shuffled(labels: Tensor, rng: np.random.Generator) -> Tensor:
    """Return the indices of all images (N,) in a random order."""
    return torch.from_numpy(rng.permutation(len(labels)))


def balanced(labels: Tensor, rng: np.random.Generator) -> Tensor:
    """Return as many indices as there are labels (N,), every class equally often, to within one.

    The images of a small class are repeated, each as often as the others of its class to within
    one; a large class contributes a random part.
    """
    classes = [np.flatnonzero(labels.numpy() == label) for label in labels.unique().tolist()]
    counts = np.full(len(classes), len(labels) // len(classes))
    counts[rng.permutation(len(classes))[: len(labels) % len(classes)]] += 1
    taken = []
    for members, count in zip(classes, counts, strict=True):
        rounds = [rng.permutation(members) for _ in range(-(-count // len(members)))]
        taken.append(np.concatenate(rounds)[:count])
    return torch.from_numpy(rng.permutation(np.concatenate(taken)))


# All that data.sampler can choose: see SAMPLERS in data/config.py, which is torch-free.
ORDERS = {"shuffled": shuffled, "balanced": balanced}


Batch = tuple[Tensor, Tensor]
# What is drawn for a batch, on the CPU, before it is made on the device.
Draws = tuple[Tensor, ...]


class Normalize(nn.Module):
    """Normalizes uint8 (B,C,S,S) to float32, by the mean and std of each channel."""

    scale: Tensor  # (C,1,1)
    shift: Tensor

    def __init__(self, statistics: Statistics, device: torch.device | str = "cpu") -> None:
        super().__init__()
        mean, std = (torch.tensor(values, device=device).view(-1, 1, 1) for values in statistics)
        self.register_buffer("scale", 1 / (255 * std))
        self.register_buffer("shift", -mean / std)

    def forward(self, images: Tensor) -> Tensor:
        return images.float().mul_(self.scale).add_(self.shift)

    def undo(self, pixels: Tensor) -> Tensor:
        """Convert normalized float32 (B,C,S,S) back to uint8, for display."""
        return ((pixels - self.shift) / self.scale).round_().clamp_(0, 255).to(torch.uint8)


class DrawnBatches:
    """Base of training batches, which are made in two steps.

    `draws` draws all random numbers on the CPU, so that every device sees the same images. `batch`
    makes the images from them on the device, without waiting for it and always with the same
    shapes, so that a GPU can replay the work as a CUDA graph.
    """

    device: torch.device
    # Images per step, over all processes.
    batch_size: int

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        raise NotImplementedError

    def draws(self, epoch: int, first: int = 0) -> Iterator[Draws]:
        """Yield the random draws for each batch of an epoch, on the CPU, from number `first` on."""
        raise NotImplementedError

    def batch(self, *draws: Tensor) -> Batch:
        """Make a batch from its draws, which are on the device."""
        raise NotImplementedError

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, from number `first` on."""
        for draws in self.draws(epoch, first):
            yield self.batch(*(to_device(each, self.device) for each in draws))


class TrainBatches(DrawnBatches):
    """Shuffled, augmented batches; batch b of epoch e is a pure function of the seed, e and b.

    `sampler` says how an epoch takes the images: a choice of `data.sampling.ORDERS`.
    A batch is images (B,C,S,S) float32 and labels (B,) or mixed targets (B,K). With several
    processes, each makes its share, `rank` of `ranks`, of one batch. An incomplete last batch is
    dropped (another epoch's order will include its images), unless the whole set is smaller than
    one batch.
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
        self.order = partial(ORDERS[sampler], data.labels.cpu())
        self.images_per_epoch, self.device = len(data), device
        self.labels = data.labels.to(device)
        self.normalize = normalize
        self.batch_size = min(batch_size, len(data))
        self.seed, self.rank, self.ranks = seed, rank, ranks
        size = data.images.shape[-1]
        self.cropper = Cropper(data.images, augment, device)
        self.resized_cropper = (
            None if augment.crop_scale is None else ResizedCropper(size, augment.crop_scale)
        )
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

    def draws(self, epoch: int, first: int = 0) -> Iterator[Draws]:
        order = self.order(self.generator(epoch))
        for number in range(first, len(self)):
            index = order[number * self.batch_size : (number + 1) * self.batch_size]
            yield self.draw(index, self.generator(epoch, number))

    def generator(self, *place: int) -> np.random.Generator:
        """Return the generator of an epoch, or of a batch in it; no two give the same numbers."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=place))

    def draw(self, index: Tensor, rng: np.random.Generator) -> Draws:
        """Draw this process's share of the batch of images at `index` (B,).

        Return the packed numbers (F,b) and, if the data set does not fit on the device, the crops
        uint8 (b,C,S,S) themselves.
        """
        # Each image is mixed with the one before it, so that the one before this share is made,
        # too; index −1 is the batch's last image.
        columns = torch.arange(len(index))[self.share]
        if self.mixer is not None:
            columns = torch.cat((columns[:1] - 1, columns))
        packed = pack(self.drawn(index, rng))[:, columns]
        if self.cropper.on_device:
            return (packed,)
        rows = iter(packed.unbind())
        return packed, self.cropper.cut(next(rows).long(), unpack(rows, Cuts))

    def drawn(self, index: Tensor, rng: np.random.Generator) -> list[tuple[Tensor, ...]]:
        """Draw what each step of a batch's augmentation needs, in the order of the steps."""
        count = len(index)
        parts: list[tuple[Tensor, ...]] = [(index,), self.cropper.draw(rng, count)]
        if self.resized_cropper is not None:
            parts.append(self.resized_cropper.draw(rng, count))
        parts += self.policy.rounds(rng, count)
        if self.eraser is not None:
            parts.append(self.eraser.draw(rng, count))
        if self.mixer is not None:
            parts.append(self.mixer.draw(rng, count))
        return parts

    def batch(self, *draws: Tensor) -> Batch:
        packed, *crops = draws
        rows = iter(packed.unbind())
        index, cuts = next(rows).long(), unpack(rows, Cuts)
        images = crops[0] if crops else self.cropper.cut(index, cuts)
        if self.resized_cropper is not None:
            images = resized_crop(images, unpack(rows, Rectangles))
        for _ in range(self.policy.num_rounds):
            images = apply_round(images, unpack(rows, Round))
        pixels = self.normalize(images)
        if self.eraser is not None:
            pixels = self.eraser.erase(pixels, unpack(rows, Rectangles))
        labels = self.labels[index]
        if self.mixer is None:
            return pixels, labels
        mixture = Mixture(*(field[1:] for field in unpack(rows, Mixture)))
        return self.mixer.mix(pixels[1:], labels[1:], pixels[:-1], labels[:-1], mixture)


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
        self.images = place(data.images[self.share], device, "evaluation")
        self.labels = data.labels[self.share].to(device)
        self.normalize = normalize
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[Batch]:
        for images, labels in zip(
            self.images.split(self.batch_size), self.labels.split(self.batch_size), strict=True
        ):
            yield self.normalize(to_device(images, labels.device)), labels
