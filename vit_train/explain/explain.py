"""`vit-explain`: draw where a model's predictions come from."""

import logging
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from vit_train.base.text import file_name
from vit_train.base.writing import make_folder, require_own_folder
from vit_train.data.batches import EvalBatches
from vit_train.data.dataset import ImageSet, sample
from vit_train.data.image_files import Doubts, image_files
from vit_train.engine.precision import keep_freed_memory, pick_device
from vit_train.explain.attribution import layer_index
from vit_train.explain.explainer import (
    WRITTEN,
    Explainer,
    read_images,
    require_kept,
    true_classes,
)
from vit_train.figures.charts import save
from vit_train.figures.maps import draw_maps
from vit_train.model.autoencoder import Autoencoder, Autoregressor
from vit_train.runs.images import evaluated_images
from vit_train.runs.paths import run_folder
from vit_train.runs.settings import ExplainConfig
from vit_train.runs.trained import Trained, load
from vit_train.tasks.pixels import Reconstruct

logger = logging.getLogger(__name__)


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
    kinds = torch.ones(len(images), grid**2).scatter(1, visible, 0)
    kinds = kinds.scatter(1, query.unsqueeze(1), 2).view(-1, 1, grid, grid)
    kinds = F.interpolate(kinds, scale_factor=patch_size)
    red = torch.tensor([200, 40, 40], dtype=torch.uint8).view(3, 1, 1)
    return torch.where(kinds == 0, images, torch.where(kinds == 2, red, red.amax()))


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
    unlabeled = ImageSet(images, torch.zeros(len(images), dtype=torch.long))
    batches = EvalBatches(unlabeled, trained.normalize, len(images), trained.device)
    batch, targets = next(iter(meta.task.eval_loader(batches)))
    grid = model.encoder.grid
    if isinstance(model, Autoregressor):
        if not model.given:
            raise ValueError("task.given_rows=0: the decoder is given no patch to attend to")
        first = model.given
        everything = torch.arange(grid**2, device=trained.device).expand(len(images), -1)
        visible, hidden = everything.split((first, model.count), dim=1)
        _, attention = model.forward(batch, return_attention=True)
    else:
        assert isinstance(meta.task, Reconstruct)
        first = 0  # it predicts the visible patches, too
        visible, hidden = targets[:, : meta.task.visible], targets[:, meta.task.visible :]
        _, attention = model.forward(batch, visible, return_attention=True)
    meta.require_finite(attention[index][1])
    query = most_central(hidden, grid)
    maps = on_grid(attention[index][1], visible, grid)
    chosen = maps[torch.arange(len(maps), device=query.device), query - first]
    places = [[f"row {patch // grid + 1}, column {patch % grid + 1}"] for patch in query.tolist()]
    shown = masked(images, visible.cpu(), query.cpu(), model.patch_size)
    save(draw_maps(shown, chosen, places, LEGEND.format(layer=index + 1)), path)


# What is written for a model that predicts pixels.
DECODER = "decoder.png"


def explain_predictions(config: ExplainConfig) -> None:
    """Draw the heat maps of predictions, the distances of heads, and the filters.

    For a model that predicts pixels, draw the attention of its decoder from a hidden patch. Raise
    ValueError for a model without attention, and for a layer or class that it does not have.
    """
    keep_freed_memory()
    device = pick_device(config.device)
    trained = load(config.ckpt, device, config.weights, config.data.image_size)
    is_classifier = not isinstance(trained.model, Autoencoder)
    chosen = config.score or config.target is not None or config.method != ExplainConfig.method
    if not is_classifier and chosen:
        raise ValueError("method=, score=, target= are for classifiers: this model predicts pixels")
    if is_classifier and config.layer != ExplainConfig.layer and config.method != "attention":
        raise ValueError(f"layer={config.layer} is for method=attention: the others use all layers")
    how = config.method, config.layer, config.target
    explainer = Explainer(trained, *how) if is_classifier else None
    folder = Path(config.out or run_folder(trained.meta.path) / folder_name(config))
    require_own_folder(folder)
    written = list(WRITTEN) if is_classifier else [DECODER]
    part, doubts = None, Doubts()
    if config.images is None or config.score:
        part = evaluated_images(config.data, "test", trained.meta)[0].images
    if config.images is not None:
        paths = image_files(config.images)
        require_kept(paths, [folder / name for name in written])
        images, titles = read_images(trained, paths, config.count, config.max_pixels, doubts)
        doubts.warn()
    else:
        assert part is not None
        shown = sample(part, config.count)
        images = shown.images
        titles = true_classes(shown, trained.meta.classes) if is_classifier else []
    make_folder(folder)
    if explainer is not None:
        written = explainer.draw(folder, images, titles)
    else:
        draw_decoder(trained, images, config.layer, folder / DECODER)
    logger.info(f"written to {folder}/: {', '.join(written)}")
    if explainer is not None and part is not None and config.score:
        explainer.score(sample(part, config.score))


def folder_name(config: ExplainConfig) -> str:
    """Return a folder's name with all that differs from the default explanation."""
    parts = [
        config.method != ExplainConfig.method and config.method,
        config.layer != ExplainConfig.layer and f"layer{config.layer}",
        config.target and file_name(config.target),
        config.weights != ExplainConfig.weights and config.weights,
    ]
    return "-".join(["explain", *(part for part in parts if part)])
