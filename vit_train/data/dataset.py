"""Data sets as uint8 tensors, in memory or on disk."""

import hashlib
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vit_train.base.machine import require_memory
from vit_train.base.text import counted
from vit_train.config.data import DataConfig
from vit_train.config.fields import ImageShape, ImageSize, builder, in_pixels, sides

# Number of channels of all images.
CHANNELS = 3
CHUNK_PIXELS = 1_000_000  # limits the memory at any image size
# Number of images that are read at once from a data set, which may be larger than the memory.
IMAGES_PER_PART = 256


@dataclass(frozen=True)
class ImagesOnDisk:
    """Images uint8 (N,C,H,W) that stay in a file: the `rows` (N,) of a file of (C,H,W) images.

    Indexing reads them. They support only those methods of a tensor that read no more than they
    return.
    """

    path: Path
    image_shape: tuple[int, ...]
    rows: Tensor

    device = torch.device("cpu")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Tensor:
        rows = self.rows[index]
        size = math.prod(self.image_shape)
        images = torch.empty(rows.numel(), size, dtype=torch.uint8)
        # Not a memory map, for which Linux reads megabytes around each image.
        with self.path.open("rb", buffering=0) as file:
            for image, row in zip(images.numpy(), rows.flatten().tolist(), strict=True):
                file.seek(row * size)
                file.readinto(image)
        return images.view(*rows.shape, *self.image_shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self), *self.image_shape

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape)

    def split(self, count: int) -> Iterator[Tensor]:
        return (self[first : first + count] for first in range(0, max(1, len(self)), count))

    def to(self, device: torch.device) -> Tensor:
        images = torch.empty(self.shape, dtype=torch.uint8, device=device)
        for part, target in zip(
            self.split(IMAGES_PER_PART), images.split(IMAGES_PER_PART), strict=True
        ):
            target.copy_(part)
        return images


def select(images: Any, index: Any) -> Any:
    """Return the images, or their properties, at `index`; images on disk stay there."""
    if isinstance(images, ImagesOnDisk):
        return replace(images, rows=images.rows[index])
    return None if images is None else images[index]


def concatenated(first: Any, second: Any) -> Any:
    """Return two sets of images or of their properties as one, or None if one of them is None.

    Images of one file on disk stay there.
    """
    if first is None or second is None:
        return None
    if isinstance(first, np.ndarray):
        return np.concatenate((first, second))
    if isinstance(first, ImagesOnDisk) and first.path == getattr(second, "path", None):
        return replace(first, rows=torch.cat((first.rows, second.rows)))
    return torch.cat((first[:], second[:]))


@dataclass(frozen=True)
class ImageSet:
    """Images uint8 (N,C,H,W), labels int64 (N,) and, for data=shapes, object masks bool (N,H,W).

    The images may be ImagesOnDisk, which stay on disk. Images with tags have labels float32 (N,K)
    instead: 1 for each tag that an image has, otherwise 0.

    `names` (N,) holds the images' file names or their numbers in the source. If `names` is None,
    the images have the numbers 0 to N − 1. `groups` (N,) holds the names of the images' groups, if
    there are any; a group is never split. `weights` float32 (N,) holds the images' weights in the
    training loss, if they have any.

    `decided`, of the shape of `labels`, holds the labels that replace them after the images are
    split (data.decisions), or −1 for images that are then left out.
    """

    images: Tensor
    labels: Tensor
    masks: Tensor | None = None
    names: NDArray[Any] | None = None
    groups: NDArray[Any] | None = None
    weights: Tensor | None = None
    decided: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def all_names(self) -> NDArray[Any]:
        return np.arange(len(self)) if self.names is None else self.names

    @property
    def columns(self) -> dict[str, Any]:
        """Return all fields by their names, with `all_names` as names."""
        return vars(self) | {"names": self.all_names}

    @property
    def has_tags(self) -> bool:
        return self.labels.ndim == 2

    def class_counts(self, classes: int) -> list[int]:
        """Return the number of images of each class, or with each tag."""
        labels = self.labels
        counts = labels.sum(0).long() if self.has_tags else labels.bincount(minlength=classes)
        return counts.tolist()

    def label_names(self, classes: Sequence[str]) -> list[str]:
        """Return the name of each image's class, or the names of its tags, separated by "|"."""
        if not self.has_tags:
            return [classes[label] for label in self.labels.tolist()]
        return ["|".join(compress(classes, row)) for row in self.labels.tolist()]

    def with_others(self, others: "ImageSet") -> "ImageSet":
        """Return these images followed by `others`, which must have the same size in pixels."""
        numbered = self.names is None and others.names is None  # anew
        mine, theirs = (vars(each) if numbered else each.columns for each in (self, others))
        return ImageSet(**{key: concatenated(own, theirs[key]) for key, own in mine.items()})

    def subset(self, index: Tensor) -> "ImageSet":
        rows = index.cpu().numpy()
        return ImageSet(**{key: select(each, rows) for key, each in self.columns.items()})

    def with_weight(self) -> "ImageSet":
        """Return the images whose weight in the loss is not 0; without weights, all images."""
        return self if self.weights is None else self.subset(self.weights.nonzero().squeeze(1))

    @property
    def left_out(self) -> Tensor:
        """Return True for each image that data.decisions leaves out: bool (N,).

        This needs `decided`.
        """
        assert self.decided is not None
        return (self.decided.amax(1) if self.has_tags else self.decided) < 0

    def with_decisions(self) -> "ImageSet":
        """Return the images that data.decisions keeps, with the labels that it gives them."""
        if self.decided is None:
            return self
        return replace(self, labels=self.decided, decided=None).subset(~self.left_out)

    def units(self) -> tuple[Tensor, Tensor]:
        """Return the units that may not be split: the groups or, without groups, single images.

        Return two tensors: the index of the first image of each unit (U,), and the number of each
        image's unit (N,).
        """
        names = np.arange(len(self)) if self.groups is None else self.groups.astype(str)
        _, first, unit = np.unique(names, return_index=True, return_inverse=True)
        return torch.from_numpy(first), torch.from_numpy(unit)


class Statistics(NamedTuple):
    """Mean and standard deviation per channel, of pixels scaled to 0…1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class DataFacts(NamedTuple):
    """A data set's classes, image shape and checksum, and the keys of seen images.

    Seen images were used for training or validation, by this model or by one it learned from.
    """

    classes: tuple[str, ...]
    image_shape: ImageShape
    # A checksum of all images and labels.
    fingerprint: str
    # The `image_keys` of the training and validation images (unless they are a fixed part of the
    # source) and of the images seen by the models from which this one learns.
    seen: Tensor | None = None
    # The `image_keys` seen by those models only.
    seen_before: Tensor | None = None


class Seen(NamedTuple):
    """The `image_keys` of a model's training and validation images.

    The images of files were read with `settings`, some of those of FolderConfig.
    """

    keys: Tensor
    settings: dict[str, Any]


@dataclass(frozen=True)
class Dataset:
    """A source's training and test images and, if there are any, validation and unlabeled images.

    `unlabeled` is uint8 (N,C,H,W), possibly a memory-mapped file.
    """

    train: ImageSet
    test: ImageSet
    classes: tuple[str, ...]
    val: ImageSet | None = None
    unlabeled: Tensor | None = None
    # Settings of the source that loading determined, to be stored with the run.
    settings: dict[str, Any] = field(default_factory=dict)
    # The names of files that were left out because they cannot be decoded, each with the reason.
    broken: dict[str, str] = field(default_factory=dict)
    # The names of files that are not read as images, each with the reason.
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def image_shape(self) -> ImageShape:
        """Return the shape of one image, (C,H,W)."""
        return tuple(self.train.images.shape[1:])  # type: ignore[return-value]

    @cached_property
    def fingerprint(self) -> str:
        """Return a checksum of images, labels, classes, groups, weights and decisions.

        The checksum does not depend on where the data is stored. Of unlabeled images, only the
        number and the shape affect the checksum.
        """
        unlabeled = () if self.unlabeled is None else tuple(self.unlabeled.shape)
        crc = zlib.crc32(repr((self.classes, unlabeled)).encode())
        for part in filter(None, (self.train, self.val, self.test)):
            more = [each for each in (part.labels, part.weights, part.decided) if each is not None]
            for tensor in chain(part.images.split(IMAGES_PER_PART), more):
                crc = zlib.crc32(tensor.contiguous().numpy().data, crc)
            if part.groups is not None:
                crc = zlib.crc32(repr(part.groups.tolist()).encode(), crc)
        return f"{crc:08x}"


def load_dataset(config: DataConfig) -> Dataset:
    """Load the data set that the config selects; raise ValueError if it cannot be loaded."""
    data: Dataset = builder(config)(config)
    return data


def image_keys(images: Tensor) -> Tensor:
    """Return int64 keys (N,) of uint8 images (N,C,H,W): a hash of each image's pixels."""
    pixels = (image for part in images.split(IMAGES_PER_PART) for image in part.numpy())
    digests = (hashlib.blake2b(image, digest_size=8).digest() for image in pixels)
    return torch.from_numpy(np.frombuffer(b"".join(digests), np.int64).copy())


def are_among(images: Tensor, keys: Tensor) -> Tensor:
    """Return True for each uint8 image (N,C,H,W) whose key is in `keys` (M,): bool (N,)."""
    return torch.isin(image_keys(images), keys)


def without(images: ImageSet, keys: Tensor | None) -> ImageSet:
    """Return the images whose `image_keys` are not in `keys` (M,).

    If `keys` is None, return all images.
    """
    if keys is None:
        return images
    return images.subset(~are_among(images.images, keys))


def resize(images: Tensor, image_size: ImageSize | None) -> Tensor:
    """Resize uint8 images (N,C,H,W) to a value of data.image_size, bilinearly with antialiasing.

    If the size is None or the images' own, return the images unchanged. Images are resized in
    chunks to save memory. Raise ValueError if the result does not fit into memory.
    """
    if image_size is None or (size := sides(image_size)) == images.shape[2:]:
        return images
    require_images_fit(len(images), size, f"data.image_size={image_size}")
    # Not joined from parts, which would double the memory.
    resized = torch.empty(*images.shape[:2], *size, dtype=torch.uint8, device=images.device)
    chunk = max(1, CHUNK_PIXELS // max(math.prod(size), math.prod(images.shape[2:])))
    for part, target in zip(images.split(chunk), resized.split(chunk), strict=True):
        scaled = F.interpolate(part.float(), size, mode="bilinear", antialias=True)
        target.copy_(scaled.round_().clamp_(0, 255))
    return resized


def channel_statistics(images: Tensor) -> Statistics:
    """Compute the exact mean and std of each channel of uint8 images (N,C,H,W) from histograms.

    The std of a constant channel is one gray level (1/255), to avoid division by zero.
    """
    counts = torch.zeros(images.shape[1], 256, dtype=torch.int64)
    for part in images.split(IMAGES_PER_PART):
        counts += torch.stack([each.flatten().bincount(minlength=256) for each in part.unbind(1)])
    share = counts / counts.sum(1, keepdim=True).double()  # (C,256)
    level = torch.arange(256, dtype=torch.float64) / 255
    mean = share @ level
    variance = (share * (level - mean.unsqueeze(1)).square()).sum(1)
    return Statistics(tuple(mean.tolist()), tuple(variance.sqrt().clamp(min=1 / 255).tolist()))


def valid_statistics(mean: Sequence[float], std: Sequence[float]) -> Statistics:
    """Return `mean` and `std` as Statistics; raise ValueError if they are invalid.

    Each must have one finite value per channel, and every std must be positive.
    """
    found = Statistics(tuple(map(float, mean)), tuple(map(float, std)))
    is_complete = len(found.mean) == len(found.std) == CHANNELS
    if not is_complete or not all(map(math.isfinite, chain(*found))) or min(found.std) <= 0:
        raise ValueError(
            f"mean {found.mean} and std {found.std} must each have {CHANNELS} finite values, one "
            "per channel, and each std must be positive (data.mean, data.std)"
        )
    return found


def require_images_fit(count: int, size: Sequence[int], settings: str) -> None:
    """Raise ValueError if the machine's RAM is too small for `count` images of height and width.

    The message begins with `settings`, the names and values of the settings that determine these
    numbers.
    """
    require_memory(
        count * math.prod(size) * 6,  # RGB, and a copy while its training images are split
        f"{settings}: {counted(count, 'image')} of {in_pixels(size)}",
        "choose fewer or smaller images, or set data.cache=true for images in files",
    )
