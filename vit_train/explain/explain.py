"""`vit-explain` after its arguments are accepted: maps, head distances, filters, and scores."""

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from vit_train.data.dataset import ImageSet
from vit_train.data.image_files import Doubts, image_files
from vit_train.data.images import BrokenImage
from vit_train.data.splits import sample
from vit_train.engine.precision import keep_freed_memory, pick_device
from vit_train.explain.decoder import draw_decoder
from vit_train.explain.explainer import WRITTEN, Explainer, true_classes
from vit_train.files.text import file_name
from vit_train.files.writing import make_folder, require_own_folder
from vit_train.model.autoencoder import Autoencoder
from vit_train.runs.images import evaluated_images
from vit_train.runs.load import load
from vit_train.runs.paths import run_folder
from vit_train.runs.settings import ExplainConfig
from vit_train.runs.trained import Meta, Trained

logger = logging.getLogger(__name__)

# What is written for a model that predicts pixels.
DECODER = "decoder.png"


def explain_answers(config: ExplainConfig) -> None:
    """Draw where the predictions come from, and what is known of heads and filters.

    Of a model that predicts pixels, draw where its decoder takes a hidden patch from. Raise
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
    part = test_images(config, trained.meta) if config.images is None or config.score else None
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
    """Return a name that says what is explained otherwise than by default."""
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
    """Return uint8 images (N,3,S,S) and what is known of them: "true: cat", or a file's name.

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


def test_images(config: ExplainConfig, meta: Meta) -> ImageSet:
    return evaluated_images(config.data, "test", meta)[0].images
