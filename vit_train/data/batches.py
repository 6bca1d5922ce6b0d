"""The batches of an epoch: random numbers are drawn on the CPU, images are made on the device."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit_train.base.log import logger
from vit_train.base.machine import gigabytes
from vit_train.config.augment import AugmentConfig
from vit_train.config.fields import Size
from vit_train.data.augment import (
    Blur,
    Cropper,
    Erasing,
    Mixer,
    Orientation,
    ResizedCrop,
    Step,
    one_hot_targets,
)
from vit_train.data.dataset import ImageSet, Statistics, select
from vit_train.data.splits import strata

Batch = tuple[Tensor, Tensor]
# The random draws for a batch, made on the CPU before the batch is made on the device.
Draws = tuple[Tensor, ...]
Item = TypeVar("Item")


# The share of a GPU's free memory for images; the rest is for the model and its activations.
GPU_SHARE = 0.5


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on the device.

    Copies from the CPU to a GPU use pinned memory, so that the CPU does not wait.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def place(images: Tensor, device: torch.device, purpose: str) -> Tensor:
    """Move a data set's images to the device; if they do not fit, warn and return them unmoved.

    The images fit if they need at most GPU_SHARE of the free memory. The warning calls them "the
    images for PURPOSE".
    """
    if device.type == images.device.type:  # images on disk count as images in main memory
        return images
    free, _ = torch.cuda.mem_get_info(device)
    # memory that an earlier run in this process has freed; PyTorch reuses it
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if images.nbytes > GPU_SHARE * free:
        logger.warning(
            f"the images for {purpose} take {gigabytes(images.nbytes)}, more than "
            f"{GPU_SHARE:.0%} of the {gigabytes(free)} of free GPU memory: only one batch at a "
            "time is copied to the GPU"
        )
        return images
    return images.to(device)


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield the items; a background thread prepares each one while a GPU uses the one before it.

    The thread begins once the GPU has finished with the item before that, because the CPU could
    otherwise run far ahead of the GPU and fill its memory with items.
    """

    def prepare(used: torch.cuda.Event) -> Item | None:
        used.synchronize()
        return next(items, None)

    def start() -> Future[Item | None]:
        used = torch.cuda.Event(blocking=True)  # which does not keep a core busy
        used.record()
        return thread.submit(prepare, used)

    with ThreadPoolExecutor(1, "ahead") as thread:
        upcoming = start()
        while (item := upcoming.result()) is not None:
            upcoming = start()
            yield item


class Normalize(nn.Module):
    """Normalizes uint8 (B,C,H,W) to float32 with the mean and std of each channel."""

    def __init__(self, statistics: Statistics, device: torch.device | str = "cpu") -> None:
        super().__init__()
        mean, std = (torch.tensor(values, device=device).view(-1, 1, 1) for values in statistics)
        self.scale = nn.Buffer(1 / (255 * std))  # (C,1,1)
        self.shift = nn.Buffer(-mean / std)

    def forward(self, images: Tensor) -> Tensor:
        return images.float().mul_(self.scale).add_(self.shift)

    def undo(self, pixels: Tensor) -> Tensor:
        """Convert normalized float32 (B,C,H,W) back to uint8, for display."""
        return ((pixels - self.shift) / self.scale).round_().clamp_(0, 255).to(torch.uint8)


def share_of(count: int, rank: int, ranks: int) -> slice:
    """Return the part of `count` images for process `rank` of `ranks`, counted from 0."""
    return slice(rank * count // ranks, (rank + 1) * count // ranks)


@dataclass(eq=False)
class DrawnBatches(ABC):
    """Base class of training batches, which are made in two steps.

    This process makes the part `share` of each batch of `batch_size` images.

    `draws` draws all random numbers on the CPU, so that every device sees the same images. `batch`
    makes the images from these numbers on the device, without waiting for the device. All batches
    have the same shapes, so that a GPU can replay the work as a CUDA graph.
    """

    device: torch.device
    batch_size: int
    seed: int
    share: slice

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches in an epoch."""

    def generator(self, *key: int) -> np.random.Generator:
        """Return a random generator that depends only on the seed and the numbers in `key`.

        For an epoch, `key` is its number; for a batch, the numbers of the epoch and the batch.
        """
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))

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
        self.share = share_of(self.total, rank, ranks)
        self.images = place(select(data.images, self.share), device, "evaluation")
        self.labels = data.labels[self.share].to(device)
        self.normalize = normalize
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[Batch]:
        device = self.labels.device
        parts = iter(self.images.split(self.batch_size))
        if self.images.device.type != device.type:
            parts = ahead(part.pin_memory() for part in parts)
        for images, labels in zip(parts, self.labels.split(self.batch_size), strict=True):
            yield self.normalize(to_device(images, device)), labels


def balanced_order(labels: Tensor, rng: np.random.Generator) -> Tensor:
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


def image_steps(size: Size, augment: AugmentConfig) -> list[Step]:
    """Return the optional steps on uint8 images of height and width `size`, in their order.

    Some need torchvision, whose import takes a second.
    """
    steps: list[Step] = []
    if augment.crop_scale is not None:
        steps.append(ResizedCrop(size, augment.crop_scale))
    if augment.vertical_flip or augment.rotation:
        steps.append(Orientation(augment.vertical_flip, augment.rotation))
    if augment.policy != "none":
        from vit_train.data.policies import POLICIES

        steps.append(POLICIES[augment.policy](size, augment))
    if augment.color_jitter:
        from vit_train.data.policies import ColorJitter

        steps.append(ColorJitter(augment.color_jitter))
    if augment.blur:
        steps.append(Blur(augment.blur))
    return steps


class TrainBatches(DrawnBatches):
    """Shuffled, augmented batches; batch b of epoch e is a pure function of the seed, e and b.

    A batch holds images (B,C,H,W) float32, and labels (B,) or, with Mixup, CutMix, tags or weights,
    targets (B,K) (see `weighted`). With several processes, process `rank` of `ranks` makes only its
    share of each batch. An incomplete last batch is dropped; other epochs will include its images.
    A set smaller than `batch_size` makes a single, smaller batch. `sampler` is data.sampler.
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
        size = min(batch_size, len(data))
        super().__init__(device, size, seed, share_of(size, rank, ranks))
        # Of which equally many images are drawn; None to draw each image once.
        self.strata = strata(data.labels.cpu()) if sampler == "balanced" else None
        self.labels = data.labels.to(device)
        self.num_classes = num_classes
        self.weights: Tensor | None = None  # (N,1)
        self.normalize = normalize
        self.cropper = Cropper(place(data.images, device, "training"), augment, device, seed)
        sides = self.cropper.size
        self.steps = image_steps(sides, augment)
        self.erasing = Erasing(sides, augment.erase_prob) if augment.erase_prob else None
        mixes = augment.mixup_alpha is not None or augment.cutmix_alpha is not None
        self.mixer = Mixer(sides, num_classes, augment) if mixes else None
        optional = [each for each in (self.erasing, self.mixer) if each is not None]
        # All steps that draw random numbers, in the order of their draws.
        self.drawing = [self.cropper, *self.steps, *optional]

    def weighted(self, weights: Tensor | None) -> "TrainBatches":
        """Return these batches, with targets scaled by each image's weight (N,) unless it is None.

        Labels become one-hot rows (B,K) scaled by the image's weight. Tags get a last column of
        ones (B,K+1), scaled likewise. Mixup and CutMix mix these rows.
        """
        if weights is None:
            return self
        batches = copy.copy(self)
        batches.weights = weights.to(self.device).unsqueeze(1)
        return batches

    def __len__(self) -> int:
        return len(self.labels) // self.batch_size

    def draws(self, epoch: int, first: int = 0) -> Iterator[Draws]:
        draws = self.drawn(epoch, first)
        return draws if self.cropper.on_device else ahead(draws)

    def drawn(self, epoch: int, first: int) -> Iterator[Draws]:
        """Yield what `draws` yields, each drawn when it is needed."""
        rng = self.generator(epoch)
        if self.strata is None:
            order = torch.from_numpy(rng.permutation(len(self.labels)))
        else:
            order = balanced_order(self.strata, rng)
        for number in range(first, len(self)):
            index = order[number * self.batch_size : (number + 1) * self.batch_size]
            yield self.draw_batch(index, self.generator(epoch, number), epoch)

    def draw_batch(self, index: Tensor, rng: np.random.Generator, epoch: int = 0) -> Draws:
        """Make the random draws of one batch for this process's share of the images.

        `index` (B,) selects the images of the whole batch. Return the draws, float64 (F,b): the
        index and the draws of each step, for each of the b images that this process makes. With
        Mixup or CutMix, each image is mixed with the image before it, so b includes one more image,
        the one before this process's share. If the data set does not fit on the GPU, also return
        the cropped images, uint8 (b,C,H,W), in pinned memory.
        """
        columns = torch.arange(len(index))[self.share]
        if self.mixer is not None:  # the image before the batch's first one is its last, −1
            columns = torch.cat((columns[:1] - 1, columns))
        parts = [index.unsqueeze(0), *(each.draw(rng, index, epoch) for each in self.drawing)]
        drawn = torch.cat(parts).double()[:, columns]
        if self.cropper.on_device:
            return (drawn,)
        return drawn, self.cropper.cut(drawn[0].long(), drawn[1 : 1 + Cropper.rows]).pin_memory()

    def batch(self, *draws: Tensor) -> Batch:
        packed, *cropped = draws  # (F,b), and perhaps images uint8 (b,C,H,W)
        index, cuts, *parts = packed.split([1, *(each.rows for each in self.drawing)])
        index = index[0].long()
        images = cropped[0] if cropped else self.cropper.cut(index, cuts)
        for step in self.steps:
            images = step.apply(images, parts.pop(0))
        pixels = self.normalize(images)
        if self.erasing is not None:
            pixels = self.erasing.apply(pixels, parts.pop(0))
        labels = self.labels[index]
        if self.weights is not None:
            if labels.ndim == 2:
                labels = F.pad(labels, (0, 1), value=1)
            labels = one_hot_targets(labels, self.num_classes) * self.weights[index]
        return self.mixer.mix(pixels, labels, parts[0]) if self.mixer else (pixels, labels)
