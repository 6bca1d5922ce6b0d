"""What a model knows about places: its table of positions, and how alike two places are in it."""

import math

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from vit_train.model.encoder import Encoder


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


@torch.no_grad()
def draw_positions(encoder: Encoder) -> Figure:
    """The first absolute positions, value by value, and the similarities of the patches' places.

    As figure 7 (middle) of Dosovitskiy et al. 2021.
    """
    table = encoder.pos_embed[0]()[0].float().cpu()  # (T,D)
    patches = table[len(table) - encoder.grid**2 :]
    figure = Figure(figsize=(10, 4.6), dpi=120)
    values, places = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.07, right=0.99, bottom=0.12, top=0.92, wspace=0.06)
    most = table.abs().quantile(0.99).item()
    image = values.imshow(
        table.numpy(), cmap="RdBu", vmin=-most, vmax=most, aspect="auto", interpolation="nearest"
    )
    values.set(title=f"{encoder.config.positions}: the table", xlabel="value", ylabel="token")
    figure.colorbar(image, ax=values, shrink=0.8)
    image = places.imshow(mosaic(similarity(patches)).numpy(), cmap="viridis", vmax=1)
    places.set(title="each patch's place: its cosine to all others", xticks=[], yticks=[])
    places.spines[:].set_visible(False)
    figure.colorbar(image, ax=places, shrink=0.8)
    return figure
