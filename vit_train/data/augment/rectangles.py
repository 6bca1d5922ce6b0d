"""Random rectangles in a square image, for cropping, erasing and CutMix."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vit_train.data.augment.drawn import per_image

TRIES = 10


class Rectangles(NamedTuple):
    """One rectangle per image, in whole pixels; each field is (B,)."""

    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor

    def contain(self, size: int) -> Tensor:
        """Return which pixels lie inside: bool (B,1,size,size)."""
        top, left, height, width = (per_image(field, torch.int32) for field in self)
        place = torch.arange(size, dtype=torch.int32, device=self.top.device)
        x, y = place.view(1, 1, 1, -1), place.view(1, 1, -1, 1)
        return (y >= top) & (y < top + height) & (x >= left) & (x < left + width)


def random_rectangles(
    rng: np.random.Generator,
    count: int,
    size: int,
    share: tuple[float, float],
    aspect: tuple[float, float],
    largest: int,
) -> tuple[Rectangles, Tensor]:
    """Draw one rectangle per image.

    Its share of the area, the logarithm of height/width and its position are uniform, and its
    sides are at most `largest`. Each image has a few tries; the second result, bool (B,), says
    for which images one succeeded. For the others the rectangle is the whole image.
    """
    area = rng.uniform(*share, (TRIES, count)) * size**2
    ratio = np.exp(rng.uniform(math.log(aspect[0]), math.log(aspect[1]), (TRIES, count)))
    height, width = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    fits = (np.minimum(height, width) >= 1) & (np.maximum(height, width) <= largest)
    found, first = fits.any(0), (fits.argmax(0), np.arange(count))
    height = np.where(found, height[first], size).astype(np.int64)
    width = np.where(found, width[first], size).astype(np.int64)
    top, left = rng.integers(size - height + 1), rng.integers(size - width + 1)
    sides = map(torch.from_numpy, (top, left, height, width))
    return Rectangles(*sides), torch.from_numpy(found)
