"""Position embeddings: those of Dosovitskiy et al. 2021 (appendix D.4) and fixed sinusoids.

A table is a module that returns (1,T,D), to be added to the tokens. The class token, if there is
one, comes first. It has no place in the grid of patches, so the two-dimensional tables give it a
separate vector (learned) or zeros (fixed).
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def sinusoids(places: Tensor, dim: int) -> Tensor:
    """Compute PE(p, 2i) = sin(p/10000^(2i/D)) and PE(p, 2i+1) = cos(same): (N,) → (N,D).

    From Vaswani et al. 2017, section 3.5. D must be even.
    """
    frequency = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000) / dim))
    angle = places.unsqueeze(1) * frequency  # (N,D/2)
    return torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1)


class LearnedTable(nn.Module):
    """Learned 1-D positions: one vector per token, in token order."""

    def __init__(self, grid: int, dim: int, has_class: bool) -> None:
        super().__init__()
        self.has_class = has_class
        self.weight = nn.Parameter(torch.empty(1, grid**2 + has_class, dim))

    def forward(self) -> Tensor:
        return self.weight


class LearnedTable2D(nn.Module):
    """Learned 2-D positions: a D/2 vector per column and one per row, concatenated.

    The class token has a separate vector.
    """

    def __init__(self, grid: int, dim: int, has_class: bool) -> None:
        super().__init__()
        self.columns = nn.Parameter(torch.empty(grid, dim // 2))
        self.rows = nn.Parameter(torch.empty(grid, dim // 2))
        self.class_token = nn.Parameter(torch.empty(1, dim)) if has_class else None

    def forward(self) -> Tensor:
        grid = len(self.columns)
        x = self.columns.unsqueeze(0).expand(grid, -1, -1)
        y = self.rows.unsqueeze(1).expand(-1, grid, -1)
        table = torch.cat((x, y), dim=2).flatten(0, 1)  # (N,D)
        if self.class_token is not None:
            table = torch.cat((self.class_token, table))
        return table.unsqueeze(0)


class FixedTable(nn.Module):
    """A computed, not learned, table; saved with the weights so that it can be resized too."""

    def __init__(self, table: Tensor, has_class: bool) -> None:
        super().__init__()
        self.has_class = has_class
        self.weight: Tensor
        self.register_buffer("weight", table.unsqueeze(0))

    def forward(self) -> Tensor:
        return self.weight


def sinusoidal(grid: int, dim: int, has_class: bool) -> FixedTable:
    """Make a table of 1-D sinusoids over all tokens in order."""
    return FixedTable(sinusoids(torch.arange(grid**2 + has_class), dim), has_class)


def sincos_2d(grid: int, dim: int, has_class: bool) -> FixedTable:
    """Make a table of 2-D sinusoids: half of each vector from the column, half from the row.

    The class token's vector is zero.
    """
    along = sinusoids(torch.arange(grid), dim // 2)  # (grid,D/2)
    table = torch.cat((along.repeat(grid, 1), along.repeat_interleave(grid, 0)), dim=1)
    return FixedTable(F.pad(table, (0, 0, int(has_class), 0)), has_class)


TABLES: dict[str, Callable[[int, int, bool], nn.Module]] = {
    "learned": LearnedTable,
    "learned_2d": LearnedTable2D,
    "sinusoidal": sinusoidal,
    "sincos_2d": sincos_2d,
}


class RelativeKeys(nn.Module):
    """Relative positions: one learned key per distance p_q − p_k in patch order, 2N − 1 in all.

    The class token has no distances: its row and column of logits get 0.
    """

    def __init__(self, num_patches: int, head_dim: int, has_class: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2 * num_patches - 1, head_dim))
        self.has_class = int(has_class)
        place = torch.arange(num_patches)
        self.distance: Tensor
        distance = place.unsqueeze(1) - place + num_patches - 1  # (N,N)
        self.register_buffer("distance", distance, persistent=False)

    def forward(self, q: Tensor) -> Tensor:
        """Return the logits (B,H,Q,T) to add to the queries' (B,H,Q,Dh) content logits."""
        patches = q[:, :, self.has_class :]
        rows = self.distance[: patches.shape[2]]
        by_distance = patches @ self.weight.t()  # (B,H,Q,2N−1)
        logits = by_distance.gather(3, rows.expand(*by_distance.shape[:2], -1, -1))
        return F.pad(logits, (self.has_class, 0, self.has_class, 0))


def resize_positions(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Fit the absolute positions in a state dict to `model`, which has another image size.

    Grids are interpolated bicubically (Dosovitskiy et al. 2021, section 3.2), so that a patch
    keeps its place in the picture. Raise ValueError for relative positions, because their distances
    change with the image size.
    """
    resized = dict(state)
    for name, module in model.named_modules():
        if isinstance(module, LearnedTable | FixedTable):
            key = f"{name}.weight"
            extra, tokens = int(module.has_class), module.weight.shape[1]
            first, grid = state[key][:, :extra], state[key][:, extra:]
            old, new = math.isqrt(grid.shape[1]), math.isqrt(tokens - extra)
            cells = interpolate(grid.unflatten(1, (old, old)).permute(0, 3, 1, 2), new, new)
            resized[key] = torch.cat((first, cells.flatten(2).transpose(1, 2)), dim=1)
        elif isinstance(module, LearnedTable2D):
            for key in (f"{name}.columns", f"{name}.rows"):
                line = state[key].t()[None, :, :, None]  # (1,D/2,grid,1)
                resized[key] = interpolate(line, len(module.columns), 1)[0, :, :, 0].t()
        elif isinstance(module, RelativeKeys) and (
            state[f"{name}.weight"].shape != module.weight.shape
        ):
            raise ValueError("relative positions cannot be used at another image size")
    return resized


def interpolate(cells: Tensor, height: int, width: int) -> Tensor:
    """Interpolate to (B,C,height,width); return the same tensor if it already has that size."""
    if cells.shape[2:] == (height, width):
        return cells
    return F.interpolate(cells, (height, width), mode="bicubic", align_corners=False)
