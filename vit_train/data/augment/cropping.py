"""Padded crops, resized crops and flips."""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vit_train.data.augment.config import AugmentConfig
from vit_train.data.augment.rectangles import Rectangles, random_rectangles
from vit_train.data.augment.to_device import to_device
from vit_train.data.memory import require_images_fit

ASPECTS = (3 / 4, 4 / 3)


class Cuts(NamedTuple):
    """The random draws for each image, (B,): the crop's corner and whether it is mirrored."""

    dy: Tensor
    dx: Tensor
    flip: Tensor


class Cropper:
    """Crops batches from uint8 (N,C,S,S) images that are on the device."""

    def __init__(self, images: Tensor, config: AugmentConfig) -> None:
        self.size = images.shape[-1]
        self.shifts = 2 * config.crop_padding + 1
        self.flip, self.crop_scale = config.flip, config.crop_scale
        side = self.size + 2 * config.crop_padding
        require_images_fit(len(images), side, f"augment.crop_padding={config.crop_padding}")
        padded = F.pad(images, (config.crop_padding,) * 4)
        # Every crop of every image, as a view: (N,C,shifts,shifts,S,S).
        self.crops = padded.unfold(2, self.size, 1).unfold(3, self.size, 1)

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Cuts, Rectangles | None]:
        dy, dx = torch.from_numpy(rng.integers(self.shifts, size=(2, count)))
        flip = torch.from_numpy(rng.random(count) < 0.5 * self.flip)
        boxes = None
        if self.crop_scale is not None:
            share = (self.crop_scale, 1.0)
            boxes, _ = random_rectangles(rng, count, self.size, share, ASPECTS, self.size)
        return Cuts(dy, dx, flip), boxes

    def cut(self, index: Tensor, cuts: Cuts, boxes: Rectangles | None) -> Tensor:
        """Return the images at `index` (B,), on the device, cropped as drawn: uint8 (B,C,S,S)."""
        dy, dx, flip = (to_device(field, index.device) for field in cuts)
        images = self.crops[index, :, dy, dx]
        images = torch.where(flip.view(-1, 1, 1, 1), images.flip(-1), images)
        return images if boxes is None else resized_crop(images, boxes)


def resized_crop(images: Tensor, boxes: Rectangles) -> Tensor:
    """Stretch each image's rectangle to full size, bilinear: uint8 (B,C,S,S)."""
    size = images.shape[-1]
    center = (torch.arange(size, dtype=torch.float64) + 0.5) / size

    def source(start: Tensor, length: Tensor) -> Tensor:
        """Return where each output row or column lies in the image, within the rectangle: (B,S)."""
        first, last = start.unsqueeze(1), (start + length - 1).unsqueeze(1)
        place = first + center * length.unsqueeze(1) - 0.5
        return torch.minimum(torch.maximum(place, first), last)

    y, x = source(boxes.top, boxes.height), source(boxes.left, boxes.width)
    grid = torch.stack(
        (x.unsqueeze(1).expand(-1, size, -1), y.unsqueeze(2).expand(-1, -1, size)), dim=-1
    )
    grid = to_device((grid * 2 / max(1, size - 1) - 1).float(), images.device)
    return F.grid_sample(images.float(), grid, align_corners=True).round_().to(torch.uint8)
