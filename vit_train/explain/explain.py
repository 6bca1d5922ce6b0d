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
from vit_train.explain.explainer import Explainer, read_images, require_kept, true_classes
from vit_train.figures.charts import Figure, save
from vit_train.figures.maps import draw_maps
from vit_train.model.autoencoder import Autoencoder, Autoregressor
from vit_train.runs.images import evaluated_images
from vit_train.runs.load import load
from vit_train.runs.paths import run_folder
from vit_train.runs.settings import ExplainConfig
from vit_train.runs.trained import Trained
from vit_train.tasks.pixels import Reconstruct

logger = logging.getLogger(__name__)


def on_grid(seen: Tensor, visible: Tensor, grid: int) -> Tensor:
    """Return maps over the image of values (B,V) of its `visible` patches (B,V), 0 elsewhere."""
    maps = seen.new_zeros(len(seen), grid**2).scatter(1, visible, seen)
    return maps.view(-1, grid, grid)


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


@torch.no_grad()
def decoder_figures(trained: Trained, layer: int, images: Tensor) -> dict[str, Figure]:
    """Draw uint8 images (N,3,S,S), a hidden patch of each, and the patches that it attends to.

    `layer` is counted from 1, or from the end if it is negative. Raise ValueError for a layer that
    the decoder does not have, and for a model that is given no patch.
    """
    model, meta = trained
    assert isinstance(model, Autoencoder)
    index = layer_index(layer, len(model.decoder.blocks), "decoder")
    unlabeled = ImageSet(images, torch.zeros(len(images), dtype=torch.long))
    batches = EvalBatches(unlabeled, trained.normalize, len(images), trained.device)
    batch, order = next(iter(meta.task.eval_loader(batches)))
    grid = model.encoder.grid
    if isinstance(model, Autoregressor):
        count = first = model.given
        if not count:
            raise ValueError("task.given_rows=0: the decoder is given no patch to attend to")
        order = torch.arange(grid**2, device=trained.device).expand(len(images), -1)
        _, attention = model.forward(batch, return_attention=True)
    else:
        assert isinstance(meta.task, Reconstruct)
        count, first = meta.task.visible, 0  # the decoder predicts the visible patches, too
        _, attention = model.forward(batch, order[:, :count], return_attention=True)
    weights = attention[index][1].mean(dim=1)  # over the heads: (B,Q,T)
    meta.require_finite(weights)
    visible, query = order[:, :count], most_central(order[:, count:], grid)
    each = torch.arange(len(images), device=query.device)
    # The visible patches are the last tokens; the class token, if there is one, has no place.
    maps = on_grid(weights[each, query - first, -count:], visible, grid)
    places = [[f"row {patch // grid + 1}, column {patch % grid + 1}"] for patch in query.tolist()]
    shown = masked(images, visible.cpu(), query.cpu(), model.patch_size)
    legend = f"attention of the red patch to the visible ones, decoder layer {index + 1}"
    return {"decoder": draw_maps(shown, maps, places, legend)}


def explain_predictions(config: ExplainConfig) -> None:
    """Draw the heat maps of predictions, the distances of heads, and the filters.

    For a model that predicts pixels, draw the attention of its decoder from a hidden patch. Raise
    ValueError for a model without attention, and for a layer or class that it does not have.
    """
    keep_freed_memory()
    trained = load(config.ckpt, pick_device(config.device), config.weights, config.data.image_size)
    explainer = None
    if not isinstance(trained.model, Autoencoder):
        if config.layer != ExplainConfig.layer and config.method != "attention":
            raise ValueError(
                f"layer={config.layer} is for method=attention: the others use all layers"
            )
        explainer = Explainer(trained, config.method, config.layer, config.target)
    elif config.score or config.target is not None or config.method != ExplainConfig.method:
        raise ValueError("method=, score=, target= are for classifiers: this model predicts pixels")
    folder = Path(config.out or run_folder(trained.meta.path) / folder_name(config))
    require_own_folder(folder)
    paths: list[Path] = []
    if config.images is None or config.score:
        part = evaluated_images(config.data, "test", trained.meta)[0].images
    if config.images is None:
        shown = sample(part, config.count)
        images, titles = shown.images, true_classes(shown, trained.meta)
    else:
        paths, doubts = image_files(config.images), Doubts()
        images, titles = read_images(trained, paths, config.count, config.max_pixels, doubts)
        doubts.warn()
    if explainer is not None:
        figures = explainer.figures(images, titles)
    else:
        figures = decoder_figures(trained, config.layer, images)
    files = {folder / f"{name}.png": figure for name, figure in figures.items()}
    require_kept(paths, files)
    make_folder(folder)
    for file, figure in files.items():
        save(figure, file)
    logger.info(f"written to {folder}/: {', '.join(file.name for file in files)}")
    if explainer is not None and config.score:
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
