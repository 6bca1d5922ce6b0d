"""Mixup (Zhang et al. 2017, arXiv:1710.09412) and CutMix (Yun et al. 2019, arXiv:1905.04899)."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vit_train.data.augment.config import AugmentConfig
from vit_train.data.augment.geometry import Rectangles, per_image


class Mixture(NamedTuple):
    """The random draws for each image, (B,): a rectangle, and weights outside and inside it."""

    outside: Tensor
    inside: Tensor
    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor


class Mixer:
    """Mixes each image and its label with another's, in a proportion λ drawn for each image."""

    def __init__(self, size: int, num_classes: int, config: AugmentConfig) -> None:
        self.size, self.num_classes = size, num_classes
        self.mixup, self.cutmix = config.mixup_alpha, config.cutmix_alpha
        self.prob = config.mix_prob

    def draw(self, rng: np.random.Generator, count: int) -> Mixture:
        """Draw each image's weights and rectangle.

        Mixup's weight is λ everywhere. CutMix's is 1 outside a rectangle of area 1 − λ and 0
        inside. As in CutMix's reference code, the rectangle's center is uniform and its sides are
        clipped at the image's border.
        """
        kinds = [alpha for alpha in (self.mixup, self.cutmix) if alpha is not None]
        kind = rng.integers(len(kinds), size=count)
        cuts = (kind == len(kinds) - 1) & (self.cutmix is not None)
        alpha = np.asarray(kinds)[kind]
        mixed = rng.random(count) < self.prob
        share = np.where(mixed, rng.beta(alpha, alpha), 1.0)
        half = (0.5 * np.sqrt(1 - share) * self.size).astype(np.int64)
        center = rng.integers(self.size, size=(2, count))
        low, high = (center - half).clip(min=0), (center + half).clip(max=self.size)
        outside, inside = np.where(cuts, 1.0, share), np.where(cuts, 0.0, share)
        return Mixture(*map(torch.from_numpy, (outside, inside, *low, *(high - low))))

    def mix(
        self, images: Tensor, labels: Tensor, others: Tensor, other_labels: Tensor, drawn: Mixture
    ) -> tuple[Tensor, Tensor]:
        """Mix images (B,C,S,S) and labels (B,) with others of the same shapes.

        Return the mixed images and their targets (B,K).
        """
        box = Rectangles(*drawn[2:])
        area = (box.height * box.width).double() / self.size**2
        share = (area * drawn.inside + (1 - area) * drawn.outside).float().unsqueeze(1)
        weight = torch.where(
            box.contain(self.size), per_image(drawn.inside), per_image(drawn.outside)
        )  # (B,1,S,S)
        targets = torch.lerp(self.certain(other_labels), self.certain(labels), share)
        return torch.lerp(others, images, weight), targets

    def certain(self, labels: Tensor) -> Tensor:
        """Return labels (B,) as one-hot targets (B,K); −1, which means no label, becomes zeros."""
        classes = torch.arange(self.num_classes, device=labels.device)
        return (labels.unsqueeze(1) == classes).float()
