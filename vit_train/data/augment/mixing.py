"""Mixup (Zhang et al. 2017, arXiv:1710.09412) and CutMix (Yun et al. 2019, arXiv:1905.04899)."""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vit_train.data.augment.config import AugmentConfig
from vit_train.data.augment.rectangles import Rectangles
from vit_train.data.augment.transfer import sent


class Mixture(NamedTuple):
    """What is drawn for each image, (B,): its weight outside and inside of a rectangle."""

    outside: Tensor
    inside: Tensor
    top: Tensor
    left: Tensor
    height: Tensor
    width: Tensor


class Mixer:
    """Mixes every image and its label with another's, each in its own proportion λ."""

    def __init__(self, size: int, num_classes: int, config: AugmentConfig) -> None:
        self.size, self.num_classes = size, num_classes
        self.mixup, self.cutmix, self.prob = (
            config.mixup_alpha,
            config.cutmix_alpha,
            config.mix_prob,
        )

    def draw(self, rng: np.random.Generator, count: int) -> Mixture:
        """Mixup has λ everywhere; CutMix 1 outside of a rectangle of area 1 − λ, and 0 inside.

        As in CutMix's own code the rectangle's centre is uniform and its sides are cut at the
        image's border.
        """
        kinds = [alpha for alpha in (self.mixup, self.cutmix) if alpha is not None]
        kind = rng.integers(len(kinds), size=count)
        cuts = (kind == len(kinds) - 1) & (self.cutmix is not None)
        alpha = np.asarray(kinds)[kind]
        mixed = rng.random(count) < self.prob
        share = np.where(mixed, rng.beta(alpha, alpha), 1.0)
        half = (0.5 * np.sqrt(1 - share) * self.size).astype(np.int64)
        centre = rng.integers(self.size, size=(2, count))
        low, high = (centre - half).clip(min=0), (centre + half).clip(max=self.size)
        outside, inside = np.where(cuts, 1.0, share), np.where(cuts, 0.0, share)
        return Mixture(*map(torch.from_numpy, (outside, inside, *low, *(high - low))))

    def mix(
        self, images: Tensor, labels: Tensor, others: Tensor, other_labels: Tensor, drawn: Mixture
    ) -> tuple[Tensor, Tensor]:
        """Images (B,C,S,S) and labels (B,) with others of the same shapes → targets (B,K)."""
        device = images.device
        box = Rectangles(*drawn[2:])
        area = (box.height * box.width).double() / self.size**2
        share = area * drawn.inside + (1 - area) * drawn.outside

        def there(weight: Tensor, *shape: int) -> Tensor:
            return sent(weight.float().view(-1, *shape), device)

        inside = box.contain(self.size, device)

        def weight(inner: Tensor, outer: Tensor) -> Tensor:
            return torch.where(inside, there(inner, 1, 1, 1), there(outer, 1, 1, 1))

        mixed = others * weight(1 - drawn.inside, 1 - drawn.outside)
        mixed.add_(images * weight(drawn.inside, drawn.outside))
        own, other = (F.one_hot(each, self.num_classes) for each in (labels, other_labels))
        return mixed, own * there(share, 1) + other * there(1 - share, 1)
