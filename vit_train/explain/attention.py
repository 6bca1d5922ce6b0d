"""Attention maps of the class token."""

import math

import torch.nn.functional as F
from torch import Tensor


def class_token_maps(weights: Tensor) -> Tensor:
    """Return each head's attention from the class token to the patches as maps (B,H,G,G).

    `weights` (B,H,T,T) is the attention of one layer.
    """
    to_patches: Tensor = weights[:, :, 0, 1:]
    grid = math.isqrt(to_patches.shape[2])
    return to_patches.unflatten(2, (grid, grid))  # type: ignore[no-any-return]


# The contrast that an image keeps where the attention is 0, so that it stays recognizable.
FAINT = 0.15


def overlay(images: Tensor, maps: Tensor, mode: str = "nearest") -> Tensor:
    """Fade images (B,C,S,S), normalized as the model's input, where their maps (B,G,G) are low.

    A few patches may take most of the attention. Each map is therefore scaled by its 95th
    percentile, and values above it count as 1, so that the other patches are visible too.
    """
    high = maps.flatten(1).quantile(0.95, dim=1).clamp(min=1e-12).view(-1, 1, 1)
    weight = (maps / high).clamp(max=1).unsqueeze(1)  # (B,1,G,G)
    weight = F.interpolate(weight, images.shape[2:], mode=mode)
    return images * (FAINT + (1 - FAINT) * weight)
