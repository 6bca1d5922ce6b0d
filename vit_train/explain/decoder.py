"""The visible patches to which a decoder attends when it predicts a hidden one."""

from pathlib import Path

import torch
from torch import Tensor

from vit_train.data.batches import EvalBatches
from vit_train.data.dataset import ImageSet
from vit_train.explain.attribution import layer_index
from vit_train.figures.charts import save
from vit_train.figures.heatmaps import draw_maps
from vit_train.model.autoencoder import Autoencoder, Autoregressor
from vit_train.runs.trained import Trained
from vit_train.tasks.pixels import Reconstruct


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


LEGEND = "attention of the red patch to the visible ones, decoder layer {layer}"


@torch.no_grad()
def draw_decoder(trained: Trained, images: Tensor, layer: int, path: Path) -> None:
    """Draw uint8 images (N,3,S,S), a hidden patch of each, and what it attends to, into a PNG file.

    `layer` is counted from 1, or from the end if it is negative. Raise ValueError for a layer that
    the decoder does not have, and for a model that is given no patch.
    """
    model, meta = trained
    assert isinstance(model, Autoencoder)
    index = layer_index(layer, len(model.decoder.blocks), "decoder")
    unlabelled = ImageSet(images, torch.zeros(len(images), dtype=torch.long))
    batches = EvalBatches(unlabelled, trained.normalize, len(images), trained.device)
    batch, targets = next(iter(meta.task.eval_loader(batches)))
    grid = model.encoder.grid
    if isinstance(model, Autoregressor):
        if not model.given:
            raise ValueError("task.given_rows=0: the decoder is given no patch to attend to")
        everything = torch.arange(grid**2, device=trained.device).expand(len(images), -1)
        visible, hidden = everything.split((model.given, model.count), dim=1)
        _, attention = model.forward(batch, return_attention=True)
        first = model.given
    else:
        assert isinstance(meta.task, Reconstruct)
        visible, hidden = targets[:, : meta.task.visible], targets[:, meta.task.visible :]
        _, attention = model.forward(batch, visible, return_attention=True)
        first = 0  # it predicts the visible patches, too
    meta.require_finite(attention[index][1])
    query = most_central(hidden, grid)
    maps = on_grid(attention[index][1], visible, grid)
    rows = (query - first).view(-1, 1, 1, 1).expand(-1, 1, grid, grid)
    chosen = maps.gather(1, rows).squeeze(1).cpu()
    titles = [f"row {patch // grid + 1}, column {patch % grid + 1}" for patch in query.tolist()]
    shown = masked(images, visible.cpu(), query.cpu(), model.patch_size)
    save(draw_maps(shown, chosen, titles, LEGEND.format(layer=index + 1)), path)
