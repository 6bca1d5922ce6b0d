"""The attention of one layer: which layer, and what its class token attends to."""

import math

from torch import Tensor


def layer_index(layer: int, depth: int, owner: str) -> int:
    """Return the index of a `layer` counted from 1, or from the end if it is negative.

    Raise ValueError for a layer that the `owner` does not have.
    """
    if not 1 <= abs(layer) <= depth:
        raise ValueError(f"layer={layer}: the {owner} has the layers 1 to {depth}")
    return layer - 1 if layer > 0 else depth + layer


def class_token_maps(weights: Tensor) -> Tensor:
    """Return each head's attention from the class token to the patches as maps (B,H,G,G).

    `weights` (B,H,T,T) is the attention of one layer.
    """
    to_patches: Tensor = weights[:, :, 0, 1:]
    grid = math.isqrt(to_patches.shape[2])
    return to_patches.unflatten(2, (grid, grid))  # type: ignore[no-any-return]
