"""Attention maps of the class token."""

import math

from torch import Tensor


def class_token_maps(weights: Tensor) -> Tensor:
    """Return each head's attention from the class token to the patches as maps (B,H,G,G).

    `weights` (B,H,T,T) is the attention of one layer.
    """
    to_patches: Tensor = weights[:, :, 0, 1:]
    grid = math.isqrt(to_patches.shape[2])
    return to_patches.unflatten(2, (grid, grid))  # type: ignore[no-any-return]
