"""Position embeddings: those of Dosovitskiy et al. 2021 (appendix D.4), sinusoids, rotations.

Each class defines how positions are initialized and resized to another image size, and which widths
are supported. Absolute positions are added to the tokens; attention positions act inside every
attention layer. The class token, if any, comes first. The class token is not in the grid of
patches, so two-dimensional tables give it a separate vector (learned) or zeros (fixed). Registers,
which follow the class token, have no positions: tables leave them out.

To add a kind, write a subclass of AbsolutePositions or AttentionPositions, and a line in POSITIONS.
"""

import math
from typing import ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit_train.config.fields import Size, chosen
from vit_train.config.model import ViTConfig
from vit_train.model.layers import init_normal

Weights = dict[str, Tensor]
Kind = TypeVar("Kind", bound="PositionEmbedding")


def interpolate(vectors: Tensor, size: Size) -> Tensor:
    """Resize `vectors` (B,D,H,W) to `size`: bicubic, with antialiasing, as in timm.

    PyTorch cannot do this in half precision, so the result is at least float32.
    """
    vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    return F.interpolate(vectors, size, mode="bicubic", antialias=True)


class PositionEmbedding(nn.Module):
    """Base class of all position embeddings.

    The constructor takes the grid of patches, as its numbers of rows and columns, the width of the
    vectors, and whether there is a class token.
    """

    # `dim` must be a multiple of this.
    width_multiple: ClassVar[int] = 1

    def init_weights(self, std: float) -> None:
        """Draw the initial weights; `std` is model.pos_std. By default, change nothing."""

    def resized(self, state: Weights, grid: Size) -> Weights:
        """Resize a state dict from another `grid` of patches to this grid.

        The state dict must come from the same class. Raise ValueError if positions of this class
        cannot be resized.
        """
        return state


class Learned(PositionEmbedding):
    """Base class of positions whose weights are all drawn from N(0, std²)."""

    def init_weights(self, std: float) -> None:
        for parameter in self.parameters():
            init_normal(parameter, std)


class AbsolutePositions(PositionEmbedding):
    """Positions that are added to the tokens: `forward()` returns (1,T,D), and `dim` is D."""


class AttentionPositions(PositionEmbedding):
    """Positions that act on the queries and keys of every attention layer.

    The width `dim` is the width Dh of a head. In place of `has_class`, the constructor takes the
    number of tokens before the patches.
    """

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Rotate the queries (B,H,Q,Dh) of the first Q tokens and all keys (B,H,T,Dh).

        By default, return both unchanged.
        """
        return q, k

    def bias(self, q: Tensor, k: Tensor) -> Tensor | None:
        """Return a term to add to the logits (B,H,Q,T), or None to add nothing.

        The logits are those of queries q (B,H,Q,Dh) and keys k (B,H,T,Dh).
        """
        return None


class Table(AbsolutePositions):
    """A table `weight` (1,T,D) with a vector for each token, in token order."""

    weight: Tensor

    def __init__(self, grid: Size, dim: int, has_class: bool) -> None:
        super().__init__()
        self.grid = grid
        self.has_class = has_class

    def forward(self) -> Tensor:
        return self.weight

    def resized(self, state: Weights, grid: Size) -> Weights:
        """Interpolate the table bicubically, so that each position keeps its location in the image.

        From Dosovitskiy et al. 2021, section 3.2. The class token's vector does not change.
        """
        extra = int(self.has_class)
        first = state["weight"][:, :extra]
        cells = state["weight"][:, extra:]
        cells = cells.unflatten(1, grid).permute(0, 3, 1, 2)  # (1,D,rows,columns)
        cells = interpolate(cells, self.grid).flatten(2).transpose(1, 2)
        return {"weight": torch.cat((first, cells), dim=1)}


class LearnedTable(Learned, Table):
    """Learned 1-D positions: one vector for each token."""

    def __init__(self, grid: Size, dim: int, has_class: bool) -> None:
        super().__init__(grid, dim, has_class)
        self.weight = nn.Parameter(torch.empty(1, math.prod(grid) + has_class, dim))


def by_cell(columns: Tensor, rows: Tensor) -> Tensor:
    """Concatenate the vectors of each patch's column and row: (C,D), (R,D) → (R·C,2D)."""
    x = columns.unsqueeze(0).expand(len(rows), -1, -1)
    y = rows.unsqueeze(1).expand(-1, len(columns), -1)
    return torch.cat((x, y), dim=2).flatten(0, 1)


class LearnedTable2D(Learned, AbsolutePositions):
    """Learned 2-D positions: vectors (D/2,) for the patch's column and row, concatenated."""

    width_multiple = 2

    def __init__(self, grid: Size, dim: int, has_class: bool) -> None:
        super().__init__()
        rows, columns = grid
        self.columns = nn.Parameter(torch.empty(columns, dim // 2))
        self.rows = nn.Parameter(torch.empty(rows, dim // 2))
        self.class_token = nn.Parameter(torch.empty(1, dim)) if has_class else None

    def forward(self) -> Tensor:
        table = by_cell(self.columns, self.rows)  # (N,D)
        if self.class_token is not None:
            table = torch.cat((self.class_token, table))
        return table.unsqueeze(0)

    def resized(self, state: Weights, grid: Size) -> Weights:
        # Resized as rows: PyTorch's antialiased interpolation is wrong along a column of width 1.
        lines = {key: state[key].t()[None, :, None] for key in ("columns", "rows")}
        return state | {
            key: interpolate(line, (1, len(getattr(self, key))))[0, :, 0].t()  # (1,D/2,1,length)
            for key, line in lines.items()
        }


class Sinusoidal(Table):
    """1-D sinusoids over all tokens in order.

    The table is fixed, but saved with the weights, so that the table can be resized.
    """

    width_multiple = 2

    def __init__(self, grid: Size, dim: int, has_class: bool) -> None:
        super().__init__(grid, dim, has_class)
        table = torch.empty(1, math.prod(grid) + has_class, dim)
        # On the meta device, arithmetic would load PyTorch's compiler, which takes seconds.
        if not table.is_meta:
            table = self.computed(grid, dim, has_class).unsqueeze(0)
        self.weight = nn.Buffer(table)

    def computed(self, grid: Size, dim: int, has_class: bool) -> Tensor:
        """Compute the table (T,D)."""
        return sinusoids(torch.arange(math.prod(grid) + has_class), dim)


class Sincos2D(Sinusoidal):
    """2-D sinusoids: half of each vector depends on the patch's column, half on its row."""

    width_multiple = 4

    def computed(self, grid: Size, dim: int, has_class: bool) -> Tensor:
        rows, columns = (sinusoids(torch.arange(count), dim // 2) for count in grid)
        return F.pad(by_cell(columns, rows), (0, 0, int(has_class), 0))


def sinusoids(places: Tensor, dim: int) -> Tensor:
    """Compute PE(p, 2i) = sin(a) and PE(p, 2i+1) = cos(a), with a = p/10000^(2i/D): (N,) → (N,D).

    From Vaswani et al. 2017, section 3.5. D must be even.
    """
    frequency = torch.exp(torch.arange(0, dim, 2) * (-math.log(10000) / dim))
    angle = places.unsqueeze(1) * frequency  # (N,D/2)
    return torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1)


class RelativeKeys(Learned, AttentionPositions):
    """Relative positions: one learned key for each of the 2N − 1 distances between N patches.

    A distance is the index of the query's patch minus the index of the key's patch. The tokens
    before the patches have no distances: nothing is added to the logits in their rows and columns.
    """

    def __init__(self, grid: Size, dim: int, prefix: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2 * math.prod(grid) - 1, dim))
        self.grid = grid
        self.prefix = prefix

    def bias(self, q: Tensor, k: Tensor) -> Tensor:
        patches = q[:, :, self.prefix :] * q.shape[-1] ** -0.5  # (B,H,Q',Dh), Q' = Q − prefix
        by_distance = patches @ self.weight.t()  # (B,H,Q',2N−1)
        last = len(self.weight) // 2  # N − 1
        index = torch.arange(last + 1, device=q.device)
        distance = index[: patches.shape[2]].unsqueeze(1) - index + last  # (Q',N)
        logits = by_distance.gather(3, distance.expand(*by_distance.shape[:2], -1, -1))
        return F.pad(logits, (self.prefix, 0, min(self.prefix, q.shape[2]), 0))

    def resized(self, state: Weights, grid: Size) -> Weights:
        if grid != self.grid:
            raise ValueError("model.positions=relative cannot be resized to another image size")
        return state


class Rotary2D(AttentionPositions):
    """Axial rotary positions: queries and keys are rotated by angles given by column and row.

    From Su et al. 2021 (arXiv:2104.09864) and Heo et al. 2024 (arXiv:2403.13298). In each head,
    half of the pairs of values rotate with the column and half with the row, at wavelengths of 2π
    to nearly 200π patches. As a result, the positions of two patches affect the logit only through
    the signed differences of their columns and rows. The tokens before the patches are not rotated.
    """

    width_multiple = 4

    def __init__(self, grid: Size, dim: int, prefix: int) -> None:
        super().__init__()
        frequency = 100.0 ** -(torch.arange(0, dim // 2, 2) / (dim // 2))  # (Dh/4,)
        rows, columns = (torch.arange(count).unsqueeze(1) * frequency for count in grid)
        angles = F.pad(by_cell(columns, rows), (0, 0, prefix, 0))  # (T,Dh/2)
        # Pairs are formed from the two halves, not from neighbors; only the order of values
        # differs.
        cos = angles.cos()
        sin = angles.sin()
        self.cos = nn.Buffer(torch.cat((cos, cos), dim=1), persistent=False)
        self.sin = nn.Buffer(torch.cat((-sin, sin), dim=1), persistent=False)

    def rotate(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return self.turned(q), self.turned(k)

    def turned(self, x: Tensor) -> Tensor:
        """Rotate the queries or keys of the first Q tokens: (B,H,Q,Dh) → (B,H,Q,Dh)."""
        count = x.shape[2]
        return x * self.cos[:count] + x.roll(x.shape[3] // 2, dims=3) * self.sin[:count]


# The choices of model.positions besides "none".
POSITIONS: dict[str, type[PositionEmbedding]] = {
    "learned": LearnedTable,
    "learned_2d": LearnedTable2D,
    "relative": RelativeKeys,
    "rotary_2d": Rotary2D,
    "sinusoidal": Sinusoidal,
    "sincos_2d": Sincos2D,
}


def make_positions(kind: type[Kind], config: ViTConfig, grid: Size) -> Kind | None:
    """Return the positions that the config selects, or None if they are not of the class `kind`.

    Raise ValueError for an unknown name, or for positions that do not fit the rest of the config.
    """
    # "none" is the base class, which is of neither kind.
    known: dict[str, type[PositionEmbedding]] = {"none": PositionEmbedding, **POSITIONS}
    positions = chosen(known, "model.positions", config.positions)
    absolute = issubclass(positions, AbsolutePositions)
    if config.positions_at != "stem" and not absolute:
        raise ValueError(
            f"model.positions_at={config.positions_at} needs absolute positions: with "
            f"model.positions={config.positions} use model.positions_at=stem"
        )
    if not issubclass(positions, kind):
        return None
    width = config.embed_dim // (1 if absolute else config.num_heads)
    if width % positions.width_multiple:
        raise ValueError(
            f"model.positions={config.positions} needs "
            f"model.embed_dim{'' if absolute else ' / model.num_heads'} to be a multiple of "
            f"{positions.width_multiple}, not {width}: change model.embed_dim"
        )
    # Tables leave registers out; attention positions take the number of tokens before the patches.
    before = config.has_class_token if absolute else config.num_prefix_tokens
    return positions(grid, width, before)


def resize_positions(state: Weights, grid: Size, model: nn.Module) -> Weights:
    """Return the state dict with its positions resized from a `grid` of patches to the model's.

    Raise ValueError for positions that cannot be resized.
    """
    resized = dict(state)
    for name, module in model.named_modules():
        if isinstance(module, PositionEmbedding):
            prefix = f"{name}."
            own = {key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)}
            resized |= {prefix + key: value for key, value in module.resized(own, grid).items()}
    return resized
