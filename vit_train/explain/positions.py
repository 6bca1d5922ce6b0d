"""What a model knows about places: its table of positions, and how alike two places are in it."""

import math

import torch.nn.functional as F
from torch import Tensor


def similarity(table: Tensor) -> Tensor:
    """The cosine between every two of N places: (N,D) → (N,N)."""
    directions = F.normalize(table, dim=1)
    return directions @ directions.t()


def mosaic(alike: Tensor) -> Tensor:
    """Similarities (N,N) as maps, each at its own patch's place in the grid: (G·(G + 1), same).

    A map's cells are the similarities to all patches, at their places; NaN divides the maps.
    """
    grid = math.isqrt(len(alike))
    maps = alike.view(grid, grid, grid, grid)  # row, column, the other's row, its column
    maps = F.pad(maps, (0, 1, 0, 1), value=float("nan"))
    return maps.permute(0, 2, 1, 3).reshape(grid * (grid + 1), grid * (grid + 1))[:-1, :-1]
