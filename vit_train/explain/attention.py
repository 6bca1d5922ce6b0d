"""What the class token looks at."""

import math

import torch.nn.functional as F
from torch import Tensor


def class_token_maps(weights: Tensor) -> Tensor:
    """A layer's attention (B,H,T,T) → each head's of the class token to the patches, (B,H,G,G)."""
    to_patches: Tensor = weights[:, :, 0, 1:]
    grid = math.isqrt(to_patches.shape[2])
    return to_patches.unflatten(2, (grid, grid))  # type: ignore[no-any-return]


# The contrast that an image keeps where nothing looks, so that one sees what was there.
FAINT = 0.15


def overlay(images: Tensor, maps: Tensor, mode: str = "nearest") -> Tensor:
    """Images (B,C,S,S), normalised, that are clear where a map (B,G,G) is high and faint elsewhere.

    A few patches may draw most of the attention: what is above 95 % of the others' counts as one,
    so that the others can be seen, too.
    """
    most = maps.flatten(1).quantile(0.95, dim=1).clamp(min=1e-12).view(-1, 1, 1)
    weight = (maps / most).clamp(max=1).unsqueeze(1)  # (B,1,G,G)
    weight = F.interpolate(weight, images.shape[2:], mode=mode)
    return images * (FAINT + (1 - FAINT) * weight)
