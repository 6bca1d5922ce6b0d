"""Padded crops and flips, and resized crops."""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vit_train.data.augment.config import AugmentConfig
from vit_train.data.augment.drawn import per_image
from vit_train.data.augment.rectangles import Rectangles, random_rectangles
from vit_train.data.transfer import place

CROP_ASPECTS = (3 / 4, 4 / 3)


class Cuts(NamedTuple):
    """The random draws for each image, (B,): the crop's corner and whether it is mirrored."""

    dy: Tensor
    dx: Tensor
    flip: Tensor


class Cropper:
    """Crops batches from uint8 (N,C,S,S) images, on the device if they fit there."""

    def __init__(self, images: Tensor, config: AugmentConfig, device: torch.device) -> None:
        self.size, self.padding = images.shape[-1], config.crop_padding
        if self.padding > self.size:
            raise ValueError(
                f"augment.crop_padding={self.padding} must be at most {self.size}, the image size"
            )
        self.flip = config.flip
        self.images = place(images, device, "training")
        self.on_device = self.images.device.type == device.type

    def draw(self, rng: np.random.Generator, count: int) -> Cuts:
        dy, dx = torch.from_numpy(rng.integers(2 * self.padding + 1, size=(2, count)))
        flip = torch.from_numpy(rng.random(count) < 0.5 * self.flip)
        return Cuts(dy, dx, flip)

    def cut(self, index: Tensor, cuts: Cuts) -> Tensor:
        """Return the images at `index` (B,), cropped as drawn: uint8 (B,C,S,S)."""
        padded = F.pad(self.images[index], (self.padding,) * 4)
        # Every crop of every image, as a view: (B,C,2P+1,2P+1,S,S).
        crops = padded.unfold(2, self.size, 1).unfold(3, self.size, 1)
        every = torch.arange(len(index), device=index.device)
        images = crops[every, :, cuts.dy.long(), cuts.dx.long()]
        return torch.where(per_image(cuts.flip, torch.bool), images.flip(-1), images)


class ResizedCropper:
    """Stretches a random rectangle of each image to full size (Szegedy et al. 2014)."""

    def __init__(self, size: int, smallest_share: float) -> None:
        self.size, self.share = size, (smallest_share, 1.0)

    def draw(self, rng: np.random.Generator, count: int) -> Rectangles:
        boxes, _ = random_rectangles(rng, count, self.size, self.share, CROP_ASPECTS, self.size)
        return boxes


def resized_crop(images: Tensor, boxes: Rectangles) -> Tensor:
    """Stretch each image's rectangle to full size, bilinear: uint8 (B,C,S,S)."""
    size = images.shape[-1]
    center = (torch.arange(size, dtype=torch.float64, device=images.device) + 0.5) / size

    def source(start: Tensor, length: Tensor) -> Tensor:
        """Return where each output row or column lies in the image, within the rectangle: (B,S)."""
        first, last = start.unsqueeze(1), (start + length - 1).unsqueeze(1)
        place = first + center * length.unsqueeze(1) - 0.5
        return torch.minimum(torch.maximum(place, first), last)

    y, x = source(boxes.top, boxes.height), source(boxes.left, boxes.width)
    grid = torch.stack(
        (x.unsqueeze(1).expand(-1, size, -1), y.unsqueeze(2).expand(-1, -1, size)), dim=-1
    )
    grid = (grid * 2 / max(1, size - 1) - 1).float()
    return F.grid_sample(images.float(), grid, align_corners=True).round_().to(torch.uint8)
