"""`vit-explain`: draw where a model's predictions come from."""

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from vit_train.base.text import file_name
from vit_train.base.writing import make_folder, require_own_folder
from vit_train.data.batches import EvalBatches
from vit_train.data.dataset import ImageSet, sample
from vit_train.data.image_files import BrokenImage, Doubts, image_files
from vit_train.engine.precision import keep_freed_memory, pick_device
from vit_train.explain.attribution import layer_index
from vit_train.explain.explainer import WRITTEN, Explainer, true_classes
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
    unlabeled = ImageSet(images, torch.zeros(len(images), dtype=torch.long))
    batches = EvalBatches(unlabeled, trained.normalize, len(images), trained.device)
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


# What is written for a model that predicts pixels.
DECODER = "decoder.png"


def explain_answers(config: ExplainConfig) -> None:
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
    paths = [] if config.images is None else image_files(config.images)
    require_kept(paths, folder, WRITTEN if is_classifier else (DECODER,))
    part = None
    if config.images is None or config.score:
        part = evaluated_images(config.data, "test", trained.meta)[0].images
    images, truths = chosen_images(config, trained, part, paths)
    make_folder(folder)
    if explainer is None:
        draw_decoder(trained, images, config.layer, folder / DECODER)
        logger.info(f"written to {folder}/: {DECODER}")
        return
    written = explainer.draw(folder, images, truths)
    logger.info(f"written to {folder}/: {', '.join(written)}")
    if part is not None and config.score:
        explainer.score(sample(part, config.score))


def require_kept(paths: Sequence[Path], folder: Path, written: Sequence[str]) -> None:
    """Raise ValueError if one of the images is a file that is about to be written."""
    files = {(folder / name).resolve() for name in written}
    for path in paths:
        if path.resolve() in files:
            raise ValueError(f"this would replace the image {path}: choose another out=FOLDER")


def folder_name(config: ExplainConfig) -> str:
    """Return a folder's name with all that differs from the default explanation."""
    parts = ["explain"]
    if config.method != ExplainConfig.method:
        parts.append(config.method)
    if config.layer != ExplainConfig.layer:
        parts.append(f"layer{config.layer}")
    if config.target is not None:
        parts.append(file_name(config.target))
    if config.weights != "auto":
        parts.append(config.weights)
    return "-".join(parts)


def chosen_images(
    config: ExplainConfig, trained: Trained, part: ImageSet | None, paths: Sequence[Path]
) -> tuple[Tensor, list[str]]:
    """Return uint8 images (N,3,S,S) and their titles: "true: cat", or a file's name.

    They are those in the files `paths` or, if `config.images` names none, some of `part`.
    """
    meta = trained.meta
    if config.images is None:
        assert part is not None
        shown = sample(part, config.count)
        return shown.images, true_classes(shown, meta) if meta.task.needs_labels else []
    pixels: list[Tensor] = []
    names: list[str] = []
    doubts = Doubts()
    for path in paths:
        if len(names) == config.count:
            break
        try:
            pixels.append(trained.pixels(path, config.max_pixels, doubts))
        except BrokenImage as error:
            logger.warning(f"{path} cannot be read: {error}")
            continue
        names.append(path.name)
    doubts.warn()
    if not pixels:
        raise ValueError("none of the images can be read")
    return torch.stack(pixels), names
