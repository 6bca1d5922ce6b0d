"""Which visible patches a decoder takes a hidden patch from."""

import torch
from torch import Tensor


def on_grid(weights: Tensor, visible: Tensor, grid: int) -> Tensor:
    """Return maps over the image of what each of Q patches attends to: (B,H,Q,T) → (B,Q,G,G).

    `visible` (B,V) are the patches that the encoder saw, in the order of the last V of its T
    tokens; the class token, if there is one, has no place and is left out. The maps are means over
    the heads, and 0 where a patch is hidden.
    """
    batch, _, queries, _ = weights.shape
    places = visible.unsqueeze(1).expand(-1, queries, -1)
    seen = weights.mean(dim=1)[:, :, -visible.shape[1] :]
    maps = weights.new_zeros(batch, queries, grid * grid).scatter(2, places, seen)
    return maps.view(batch, queries, grid, grid)


def most_central(patches: Tensor, grid: int) -> Tensor:
    """Return, of each row of patches, the one nearest to the image's center: (B,M) → (B,)."""
    rows, columns = patches // grid, patches % grid
    middle = (grid - 1) / 2
    nearest = ((rows - middle) ** 2 + (columns - middle) ** 2).argmin(dim=1, keepdim=True)
    return patches.gather(1, nearest).squeeze(1)


def masked(images: Tensor, visible: Tensor, query: Tensor, patch_size: int) -> Tensor:
    """Return uint8 images (B,3,S,S) with hidden patches in gray, and the patch `query` (B,) in red.

    `visible` (B,V) are the patches that stay.
    """
    grid = images.shape[-1] // patch_size
    kinds = torch.full((len(images), grid * grid), 1)  # hidden
    kinds.scatter_(1, visible, 0).scatter_(1, query.unsqueeze(1), 2)
    kinds = kinds.view(-1, 1, grid, grid).repeat_interleave(patch_size, 2)
    kinds = kinds.repeat_interleave(patch_size, 3)
    red = torch.tensor([200, 40, 40], dtype=torch.uint8).view(1, 3, 1, 1)
    gray = torch.full_like(red, 200)
    return torch.where(kinds == 0, images, torch.where(kinds == 1, gray, red))
