"""Crops, random erasing, Mixup and CutMix for whole batches."""

import math
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vit_train.config.data import AugmentConfig
from vit_train.config.fields import Size, sides

Part = TypeVar("Part", bound=tuple[Tensor, ...])


def take(rows: Iterator[Tensor], kind: type[Part]) -> Part:
    """Return a tuple of type `kind`, made from the next rows of packed draws (F,B)."""
    return kind(*islice(rows, len(kind._fields)))  # type: ignore[attr-defined]


def per_image(values: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Reshape one value per image, (B,), to (B,1,1,1), which broadcasts over images (B,C,H,W)."""
    return values.to(dtype).view(-1, 1, 1, 1)


TRIES = 10


class Rectangles(NamedTuple):
    """One rectangle per image, in whole pixels; each field is (B,)."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor

    def contain(self, size: Size) -> Tensor:
        """Return True for each pixel inside its image's rectangle: bool (B,1,H,W)."""
        top, left, height, width = (per_image(field, torch.int32) for field in self)
        y, x = (torch.arange(side, dtype=torch.int32, device=self.top.device) for side in size)
        x, y = x.view(1, 1, 1, -1), y.view(1, 1, -1, 1)
        return (y >= top) & (y < top + height) & (x >= left) & (x < left + width)


def random_rectangles(
    rng: np.random.Generator,
    count: int,
    size: Size,
    share: tuple[float, float],
    aspect: tuple[float, float],
    margin: int,
) -> tuple[Rectangles, Tensor]:
    """Draw a random rectangle for each of `count` images; also return whether a draw succeeded.

    `share` is the range of the area, relative to the image's area. `aspect` is the range of the
    aspect ratio, relative to the image's. Area, logarithm of the aspect ratio and position are
    uniformly distributed. A draw fails if a side is shorter than 1 pixel, or not at least `margin`
    pixels shorter than the image's. If all TRIES draws for an image fail, its rectangle is the
    whole image, and its second result is False.
    """
    area = rng.uniform(*share, (TRIES, count)) * math.prod(size)
    ratio = np.exp(rng.uniform(math.log(aspect[0]), math.log(aspect[1]), (TRIES, count)))
    ratio *= size[0] / size[1]
    height, width = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    fits = np.minimum(height, width) >= 1
    fits &= (height <= size[0] - margin) & (width <= size[1] - margin)
    found, first = fits.any(0), (fits.argmax(0), np.arange(count))
    height = np.where(found, height[first], size[0]).astype(np.int64)
    width = np.where(found, width[first], size[1]).astype(np.int64)
    top, left = rng.integers(size[0] - height + 1), rng.integers(size[1] - width + 1)
    return Rectangles(*map(torch.from_numpy, (top, left, height, width))), torch.from_numpy(found)


CROP_ASPECTS = (3 / 4, 4 / 3)


class Cuts(NamedTuple):
    """Random draws for cropping, each (B,): the crop's top row, left column, and mirroring.

    `flip` is True for an image that is to be mirrored.
    """

    dy: Tensor
    dx: Tensor
    flip: Tensor


class Cropper:
    """Pads, crops and mirrors images of a data set, uint8 (N,C,H,W).

    The work is done where the images are: on the device, unless they do not fit there. Raises
    ValueError if the padding is larger than the images.
    """

    def __init__(
        self, images: Tensor, config: AugmentConfig, device: torch.device, seed: int
    ) -> None:
        self.size, self.padding = sides(images.shape[2:]), config.crop_padding
        if self.padding > min(self.size):
            raise ValueError(
                f"augment.crop_padding={self.padding} must be at most {min(self.size)}, the "
                "shorter side of the images"
            )
        self.flip = config.flip
        self.flipped_first = np.random.default_rng(seed).random(len(images)) < 0.5
        self.images = images
        self.on_device = self.images.device.type == device.type

    def draw(self, rng: np.random.Generator, index: Tensor, epoch: int) -> Cuts:
        """Draw how to cut the images at `index` (B,); epochs are counted from 0."""
        dy, dx = torch.from_numpy(rng.integers(2 * self.padding + 1, size=(2, len(index))))
        if self.flip == "alternate":
            flip = self.flipped_first[index.numpy()] ^ bool(epoch % 2)
        else:
            flip = rng.random(len(index)) < 0.5 * bool(self.flip)
        return Cuts(dy, dx, torch.from_numpy(flip))

    def cut(self, index: Tensor, cuts: Cuts) -> Tensor:
        """Return the images at `index` (B,), padded, cropped and mirrored: uint8 (B,C,H,W)."""
        padded = F.pad(self.images[index], (self.padding,) * 4)
        # Every crop of every image, as a view: (B,C,2P+1,2P+1,H,W).
        crops = padded.unfold(2, self.size[0], 1).unfold(3, self.size[1], 1)
        every = torch.arange(len(index), device=index.device)
        images = crops[every, :, cuts.dy.long(), cuts.dx.long()]
        return torch.where(per_image(cuts.flip, torch.bool), images.flip(-1), images)


def random_crops(
    rng: np.random.Generator, count: int, size: Size, smallest_share: float
) -> Rectangles:
    """Draw a rectangle in each image for `resized_crop` (Szegedy et al. 2014).

    The rectangle has at least `smallest_share` of the image's area.
    """
    return random_rectangles(rng, count, size, (smallest_share, 1.0), CROP_ASPECTS, 0)[0]


def resized_crop(images: Tensor, boxes: Rectangles) -> Tensor:
    """Stretch each image's rectangle to the image size, bilinearly: uint8 (B,C,H,W)."""
    height, width = images.shape[2:]

    def source(start: Tensor, length: Tensor, side: int) -> Tensor:
        """Return the sampling coordinate, in −1…1, of each output row or column: (B,H), (B,W)."""
        center = (torch.arange(side, dtype=torch.float64, device=images.device) + 0.5) / side
        first, last = start.unsqueeze(1), (start + length - 1).unsqueeze(1)
        place = first + center * length.unsqueeze(1) - 0.5
        place = torch.minimum(torch.maximum(place, first), last)
        return place * 2 / max(1, side - 1) - 1

    y, x = source(boxes.top, boxes.height, height), source(boxes.left, boxes.width, width)
    grid = torch.stack(
        (x.unsqueeze(1).expand(-1, height, -1), y.unsqueeze(2).expand(-1, -1, width)), dim=-1
    ).float()
    return F.grid_sample(images.float(), grid, align_corners=True).round_().to(torch.uint8)


# An erased rectangle's share of the image's area, and its aspect ratio: torchvision's defaults.
ERASED_AREA, ERASED_ASPECT = (0.02, 0.33), (0.3, 3.3)


def random_holes(
    rng: np.random.Generator, count: int, size: Size, config: AugmentConfig
) -> Rectangles:
    """Draw a rectangle to erase from each image; its height is 0 if the image stays unchanged."""
    boxes, found = random_rectangles(rng, count, size, ERASED_AREA, ERASED_ASPECT, 1)
    chosen = found & torch.from_numpy(rng.random(count) < config.erase_prob)
    return boxes._replace(height=boxes.height * chosen)


class Mixture(NamedTuple):
    """Random draws for mixing, each (B,): a rectangle in each image, and the image's weights.

    `outside` and `inside` are the weights outside and inside the rectangle.
    """

    outside: Tensor
    inside: Tensor
    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor


class Mixer:
    """Mixup and CutMix: mixes pairs of images, and their labels, in a random proportion λ."""

    def __init__(self, size: Size, num_classes: int, config: AugmentConfig) -> None:
        self.size, self.num_classes, self.config = size, num_classes, config

    def draw(self, rng: np.random.Generator, count: int, epoch: int = 0) -> Mixture:
        """Draw each image's weights and rectangle; from epoch `mix_epochs` on, do not mix images.

        In Mixup, an image has weight λ everywhere. In CutMix, an image has weight 0 inside a
        rectangle and weight 1 outside; the rectangle covers a share 1 − λ of the image's area. As
        in CutMix's reference code, the center of the rectangle is uniformly distributed, and the
        rectangle is clipped at the image's border. Epochs count from 0.
        """
        mixup, cutmix = self.config.mixup_alpha, self.config.cutmix_alpha
        alphas = [alpha for alpha in (mixup, cutmix) if alpha is not None]
        method = rng.integers(len(alphas), size=count)
        # CutMix, if it is used, is the last of the methods.
        cuts = (method == len(alphas) - 1) & (cutmix is not None)
        alpha = np.asarray(alphas)[method]
        is_over = epoch >= (self.config.mix_epochs or math.inf)
        mixed = rng.random(count) < (0.0 if is_over else self.config.mix_prob)
        share = np.where(mixed, rng.beta(alpha, alpha), 1.0)
        lengths = np.array(self.size)[:, None]
        half = (0.5 * np.sqrt(1 - share) * lengths).astype(np.int64)
        center = np.stack([rng.integers(side, size=count) for side in self.size])
        low, high = (center - half).clip(min=0), (center + half).clip(max=lengths)
        outside, inside = np.where(cuts, 1.0, share), np.where(cuts, 0.0, share)
        return Mixture(*map(torch.from_numpy, (outside, inside, *low, *(high - low))))

    def mix(
        self, images: Tensor, labels: Tensor, others: Tensor, other_labels: Tensor, drawn: Mixture
    ) -> tuple[Tensor, Tensor]:
        """Mix images (B,C,H,W) with `others`, and labels (B,) with `other_labels`, as drawn.

        Return the mixed images and their targets (B,K).
        """
        box = Rectangles(*drawn[2:])
        area = (box.height * box.width).double() / math.prod(self.size)
        share = (area * drawn.inside + (1 - area) * drawn.outside).float().unsqueeze(1)
        weight = torch.where(  # (B,1,H,W)
            box.contain(self.size), per_image(drawn.inside), per_image(drawn.outside)
        )
        own, other = (one_hot_targets(each, self.num_classes) for each in (labels, other_labels))
        targets = torch.lerp(other, own, share)
        return torch.lerp(others, images, weight), targets


def one_hot_targets(labels: Tensor, num_classes: int) -> Tensor:
    """Return labels (B,) as one-hot targets (B,K); −1 (no label) becomes a row of zeros.

    Tags (B,K) are targets already.
    """
    if labels.ndim == 2:
        return labels
    classes = torch.arange(num_classes, device=labels.device)
    return (labels.unsqueeze(1) == classes).float()
