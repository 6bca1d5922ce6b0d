"""Random colors and sharpness for whole batches of uint8 RGB images (B,3,H,W).

The steps have the same two methods as those of augment.py. Their results are torchvision's.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vit_train.data.policies import PIXEL_OPERATIONS


@dataclass
class ColorJitter:
    """Scales brightness, contrast and saturation, in this order, by factors in 1 ± `strength`."""

    strength: float

    rows = 3

    def draw(self, rng: np.random.Generator, index: Tensor, epoch: int) -> Tensor:
        return torch.from_numpy(rng.uniform(-self.strength, self.strength, (3, len(index))))

    def apply(self, images: Tensor, magnitudes: Tensor) -> Tensor:
        for name, magnitude in zip(("Brightness", "Contrast", "Color"), magnitudes, strict=True):
            images = PIXEL_OPERATIONS[name](images, magnitude)
        return images


@dataclass
class Blur:
    """Blurs images with a Gaussian whose standard deviation is uniform in 0…`widest` pixels."""

    widest: float

    rows = 1

    def draw(self, rng: np.random.Generator, index: Tensor, epoch: int) -> Tensor:
        return torch.from_numpy(rng.uniform(0, self.widest, (1, len(index))))

    def apply(self, images: Tensor, deviations: Tensor) -> Tensor:
        """Blur each image with its deviation (1,B): uint8 (B,3,H,W). Borders are reflected."""
        radius = min(math.ceil(3 * self.widest), min(images.shape[2:]) - 1)
        offsets = torch.arange(-radius, radius + 1, device=images.device)
        scaled = offsets / deviations[0].float().clamp(min=1e-3).unsqueeze(1)  # (B,2R+1)
        weights = (-0.5 * scaled.square()).softmax(1)
        blurred = F.pad(images.float(), (radius,) * 4, mode="reflect")
        for dim in (2, 3):  # the Gaussian of a plane is a product
            windows = blurred.unfold(dim, 2 * radius + 1, 1)
            blurred = torch.einsum("bchwk,bk->bchw", windows, weights)
        return blurred.round_().to(torch.uint8)
