"""`vit-explain` for models that predict pixels: where their decoder takes a hidden patch from."""

from pathlib import Path

import torch
from torch import Tensor

from vit_train.data.batches import EvalBatches
from vit_train.data.dataset import ImageSet
from vit_train.explain.attention import layer_index
from vit_train.explain.cross_attention import masked, most_central, on_grid
from vit_train.model.mae import Autoencoder, Autoregressor
from vit_train.report.figure_file import save
from vit_train.runs.trained import Trained
from vit_train.tasks.reconstruct import Reconstruct
from vit_train.viz.heatmaps import draw_maps

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
