"""Crops, turns, blur, random erasing, Mixup and CutMix for whole batches."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vit_train.config.augment import AugmentConfig
from vit_train.config.fields import Size, sides


class Step(Protocol):
    """A step of augmentation of images (B,C,H,W)."""

    rows: int

    def draw(self, rng: np.random.Generator, index: Tensor, epoch: int) -> Tensor:
        """Draw, on the CPU, `rows` random numbers for each of the images at `index`: (rows,B).

        Epochs count from 0.
        """

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        """Make the augmented images from these numbers, on any device."""


def per_image(values: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Reshape one value per image, (B,), to (B,1,1,1), which broadcasts over images (B,C,H,W)."""
    return values.to(dtype).view(-1, 1, 1, 1)


TRIES = 10


def random_rectangles(
    rng: np.random.Generator,
    count: int,
    size: Size,
    share: tuple[float, float],
    aspect: tuple[float, float],
    margin: int = 0,
) -> tuple[Tensor, Tensor]:
    """Draw a random rectangle for each of `count` images; also return whether a draw succeeded.

    A rectangle is its top row, left column, height and width in pixels: (4,count). `share` is the
    range of its area, relative to the image's area. `aspect` is the range of its aspect ratio,
    relative to the image's. Area, logarithm of the aspect ratio and position are uniformly
    distributed. A draw fails if a side is shorter than 1 pixel, or not at least `margin` pixels
    shorter than the image's. If all TRIES draws for an image fail, its rectangle is the whole
    image, and its second result is False.
    """
    area = rng.uniform(*share, (TRIES, count)) * math.prod(size)
    narrowest, widest = map(math.log, aspect)
    ratio = np.exp(rng.uniform(narrowest, widest, (TRIES, count))) * (size[0] / size[1])
    lengths = np.rint(np.sqrt((area * ratio, area / ratio)))  # (2,TRIES,count)
    whole = np.array(size)[:, None]
    fits = ((lengths >= 1) & (lengths <= whole[:, None] - margin)).all(0)
    found = fits.any(0)
    chosen = np.where(found, lengths[:, fits.argmax(0), np.arange(count)], whole).astype(np.int64)
    start = [rng.integers(free) for free in whole - chosen + 1]
    return torch.from_numpy(np.concatenate((start, chosen))), torch.from_numpy(found)


def is_inside(rectangles: Tensor, size: Size) -> Tensor:
    """Return True for each pixel inside its image's rectangle (4,B): bool (B,1,H,W)."""
    top, left, height, width = (per_image(row, torch.int32) for row in rectangles)
    y, x = (torch.arange(side, dtype=torch.int32, device=rectangles.device) for side in size)
    y = y.view(-1, 1)
    return (y >= top) & (y < top + height) & (x >= left) & (x < left + width)


class Cropper:
    """Pads, crops and mirrors images of a data set, uint8 (N,C,H,W).

    The draws of an image are the crop's top row, its left column, and 1 to mirror the image. The
    work is done where the images are: on the device, unless they do not fit there. Raises
    ValueError if the padding is larger than the images.
    """

    rows = 3

    def __init__(
        self, images: Tensor, config: AugmentConfig, device: torch.device, seed: int
    ) -> None:
        self.size = sides(images.shape[2:])
        self.padding = config.crop_padding
        if self.padding > min(self.size):
            raise ValueError(
                f"augment.crop_padding={self.padding} must be at most {min(self.size)}, the "
                "shorter side of the images"
            )
        self.flip = config.flip
        self.flipped_first = np.random.default_rng(seed).random(len(images)) < 0.5
        self.images = images
        self.on_device = images.device.type == device.type

    def draw(self, rng: np.random.Generator, index: Tensor, epoch: int) -> Tensor:
        """Draw how to cut the images at `index` (B,); epochs are counted from 0."""
        start = rng.integers(2 * self.padding + 1, size=(2, len(index)))
        if self.flip == "alternate":
            flip = self.flipped_first[index.numpy()] ^ bool(epoch % 2)
        else:
            flip = rng.random(len(index)) < 0.5 * bool(self.flip)
        return torch.from_numpy(np.stack((*start, flip)))

    def cut(self, index: Tensor, drawn: Tensor) -> Tensor:
        """Return the images at `index` (B,), padded, cropped and mirrored: uint8 (B,C,H,W)."""
        top, left, flip = drawn.long()
        padded = F.pad(self.images[index], (self.padding,) * 4)
        # Every crop of every image, as a view: (B,C,2P+1,2P+1,H,W).
        crops = padded.unfold(2, self.size[0], 1).unfold(3, self.size[1], 1)
        images = crops[torch.arange(len(index), device=index.device), :, top, left]
        return torch.where(per_image(flip, torch.bool), images.flip(-1), images)


CROP_ASPECTS = (3 / 4, 4 / 3)


@dataclass
class ResizedCrop:
    """Stretches a random rectangle of each image to the image size (Szegedy et al. 2014).

    The rectangle has at least `smallest_share` of the image's area.
    """

    size: Size
    smallest_share: float

    rows = 4

    def draw(self, rng: np.random.Generator, index: Tensor, epoch: int) -> Tensor:
        share = (self.smallest_share, 1.0)
        return random_rectangles(rng, len(index), self.size, share, CROP_ASPECTS)[0]

    def apply(self, images: Tensor, rectangles: Tensor) -> Tensor:
        """Stretch each image's rectangle (4,B) bilinearly: uint8 (B,C,H,W)."""

        def source(start: Tensor, length: Tensor, side: int) -> Tensor:
            """Return the sampling coordinate, in −1…1, of each output row or column: (B,side)."""
            center = (torch.arange(side, dtype=torch.float64, device=images.device) + 0.5) / side
            first = start.unsqueeze(1)
            last = (start + length - 1).unsqueeze(1)
            pixel = first + center * length.unsqueeze(1) - 0.5
            pixel = torch.minimum(torch.maximum(pixel, first), last)
            return pixel * 2 / max(1, side - 1) - 1

        height, width = self.size
        y = source(rectangles[0], rectangles[2], height).unsqueeze(2).expand(-1, -1, width)
        x = source(rectangles[1], rectangles[3], width).unsqueeze(1).expand(-1, height, -1)
        grid = torch.stack((x, y), dim=-1).float()
        return F.grid_sample(images.float(), grid, align_corners=True).round_().to(torch.uint8)


def resample(images: Tensor, maps: Tensor, mode: str = "nearest") -> Tensor:
    """Transform each image, uint8 (N,C,H,W), by its own affine map (N,6).

    A map takes positions (x, y) in the new image to positions (m0·x + m1·y + m2, m3·x + m4·y + m5)
    in the old image, in pixels from the center. `mode` is that of grid_sample. Samples from outside
    the image are black.
    """
    height, width = images.shape[2:]
    y, x = (torch.arange(side, device=images.device) - (side - 1) / 2 for side in (height, width))
    # The coordinates of grid_sample go from −1 to 1, edge to edge.
    to_x, to_y = maps.float().split(3, dim=1)
    scaled = torch.stack((to_x / (width / 2), to_y / (height / 2)), dim=1)
    along_x, along_y, shift = scaled.view(-1, 2, 3, 1, 1).unbind(2)  # each (N,2,1,1)
    source = along_x * x + (along_y * y.view(-1, 1) + shift)  # (N,2,H,W)
    source = source.permute(0, 2, 3, 1)
    return F.grid_sample(images.float(), source, mode=mode, align_corners=False).round_().byte()


@dataclass
class Orientation:
    """Turns images that have no up: upside down with probability ½, and by a random angle.

    The angle is uniform in ±`rotation` degrees. An image's draws are the entries of the matrix that
    takes positions in the new image to positions in the old image; they are computed on the CPU,
    because a GPU's sine differs.
    """

    vertical_flip: bool
    rotation: float

    rows = 4

    def draw(self, rng: np.random.Generator, index: Tensor, epoch: int) -> Tensor:
        angle = np.deg2rad(rng.uniform(-self.rotation, self.rotation, len(index)))
        upside_down = rng.random(len(index)) < 0.5 * self.vertical_flip
        sign = np.where(upside_down, -1, 1)
        sin = np.sin(angle)
        cos = np.cos(angle)
        return torch.from_numpy(np.stack((cos, -sin * sign, sin, cos * sign)))

    def apply(self, images: Tensor, matrix: Tensor) -> Tensor:
        """Turn each image by its matrix (4,B), with bilinear sampling: uint8 (B,C,H,W)."""
        no_shift = torch.zeros_like(matrix[:1])
        maps = torch.cat((matrix[:2], no_shift, matrix[2:], no_shift))
        return resample(images, maps.T, "bilinear")


@dataclass
class Blur:
    """Blurs images with a Gaussian whose standard deviation is uniform in 0…`widest` pixels."""

    widest: float

    rows = 1

    def draw(self, rng: np.random.Generator, index: Tensor, epoch: int) -> Tensor:
        return torch.from_numpy(rng.uniform(0, self.widest, (1, len(index))))

    def apply(self, images: Tensor, deviations: Tensor) -> Tensor:
        """Blur each image with its deviation (1,B): uint8 (B,C,H,W). Borders are reflected."""
        radius = min(math.ceil(3 * self.widest), min(images.shape[2:]) - 1)
        offsets = torch.arange(-radius, radius + 1, device=images.device)
        scaled = offsets / deviations[0].float().clamp(min=1e-3).unsqueeze(1)  # (B,2R+1)
        weights = (-0.5 * scaled.square()).softmax(1).repeat_interleave(images.shape[1], 0)
        padded = F.pad(images.float(), (radius,) * 4, mode="reflect")
        planes = padded.flatten(0, 1).unsqueeze(0)  # (1,B·C,H+2R,W+2R)
        # The Gaussian of a plane is a product of one along the rows and one along the columns.
        planes = F.conv2d(planes, weights[:, None, None], groups=len(weights))
        planes = F.conv2d(planes, weights[:, None, :, None], groups=len(weights))
        return planes.view_as(images).round_().to(torch.uint8)


# An erased rectangle's share of the image's area, and its aspect ratio: torchvision's defaults.
ERASED_AREA = (0.02, 0.33)
ERASED_ASPECT = (0.3, 3.3)


@dataclass
class Erasing:
    """Erases a rectangle from a share `chance` of normalized images; 0 is the mean color.

    The height of the rectangle is 0 if the image stays unchanged.
    """

    size: Size
    chance: float

    rows = 4

    def draw(self, rng: np.random.Generator, index: Tensor, epoch: int) -> Tensor:
        count = len(index)
        drawn, found = random_rectangles(rng, count, self.size, ERASED_AREA, ERASED_ASPECT, 1)
        drawn[2] *= found & torch.from_numpy(rng.random(count) < self.chance)
        return drawn

    def apply(self, pixels: Tensor, rectangles: Tensor) -> Tensor:
        return pixels.masked_fill_(is_inside(rectangles, self.size), 0)


@dataclass
class Mixer:
    """Mixup and CutMix: mixes images and their labels in a random proportion λ.

    The draws of an image are its weights outside and inside a rectangle, and the rectangle.
    """

    size: Size
    num_classes: int
    config: AugmentConfig

    rows = 6

    def draw(self, rng: np.random.Generator, index: Tensor, epoch: int) -> Tensor:
        """Draw each image's weights and rectangle; from epoch `mix_epochs` on, do not mix images.

        In Mixup, an image has weight λ everywhere. In CutMix, an image has weight 0 inside a
        rectangle and weight 1 outside; the rectangle covers a share 1 − λ of the image's area. As
        in CutMix's reference code, the center of the rectangle is uniformly distributed, and the
        rectangle is clipped at the image's border. Epochs count from 0.
        """
        count = len(index)
        cutmix = self.config.cutmix_alpha
        alphas = np.array([each for each in (self.config.mixup_alpha, cutmix) if each is not None])
        method = rng.integers(len(alphas), size=count)
        # CutMix, if it is used, is the last of the methods.
        cuts = (method == len(alphas) - 1) & (cutmix is not None)
        is_over = epoch >= (self.config.mix_epochs or math.inf)
        mixed = rng.random(count) < (0.0 if is_over else self.config.mix_prob)
        share = np.where(mixed, rng.beta(alphas[method], alphas[method]), 1.0)
        lengths = np.array(self.size)[:, None]
        half = (0.5 * np.sqrt(1 - share) * lengths).astype(np.int64)
        center = np.stack([rng.integers(side, size=count) for side in self.size])
        low = (center - half).clip(min=0)
        high = (center + half).clip(max=lengths)
        weights = np.where(cuts, [[1.0], [0.0]], share)
        return torch.from_numpy(np.concatenate((weights, low, high - low)))

    def mix(self, images: Tensor, labels: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
        """Mix each image, except the first, with the image before it, and their labels alike.

        For B + 1 images and labels, return B mixed images and their targets (B,K).
        """
        outside, inside, *rectangle = drawn[:, 1:]
        area = (rectangle[2] * rectangle[3]).double() / math.prod(self.size)
        share = (area * inside + (1 - area) * outside).float().unsqueeze(1)
        is_cut = is_inside(drawn[2:, 1:], self.size)  # (B,1,H,W)
        weight = torch.where(is_cut, per_image(inside), per_image(outside))
        targets = one_hot_targets(labels, self.num_classes)
        return (
            torch.lerp(images[:-1], images[1:], weight),
            torch.lerp(targets[:-1], targets[1:], share),
        )


def one_hot_targets(labels: Tensor, num_classes: int) -> Tensor:
    """Return labels (B,) as one-hot targets (B,K); −1 (no label) becomes a row of zeros.

    Tags (B,K) are targets already.
    """
    if labels.ndim == 2:
        return labels
    classes = torch.arange(num_classes, device=labels.device)
    return (labels.unsqueeze(1) == classes).float()
