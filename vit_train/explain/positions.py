"""Similarities between the position embeddings of a model."""

import math

import torch.nn.functional as F
from torch import Tensor


def similarity(table: Tensor) -> Tensor:
    """Return the cosine similarity of every two of N positions: (N,D) → (N,N)."""
    directions = F.normalize(table, dim=1)
    return directions @ directions.t()


def mosaic(alike: Tensor) -> Tensor:
    """Arrange similarities (N,N) as a G×G grid of maps, one per patch at the patch's place.

    A map's G×G cells are the patch's similarities to all patches, at their places. Lines of NaN
    separate the maps, so each side of the result is G·(G + 1) − 1 long.
    """
    grid = math.isqrt(len(alike))
    maps = alike.view(grid, grid, grid, grid)  # row, column, other row, other column
    maps = F.pad(maps, (0, 1, 0, 1), value=float("nan"))
    return maps.permute(0, 2, 1, 3).reshape(grid * (grid + 1), grid * (grid + 1))[:-1, :-1]
