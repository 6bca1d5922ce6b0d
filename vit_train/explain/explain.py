"""`vit-explain`: draw the patches behind a model's predictions, or write an interactive page."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from vit_train.base.log import logger
from vit_train.base.text import file_name
from vit_train.config.tools import ExplainConfig
from vit_train.data.decode import BrokenImage, warn
from vit_train.data.files import image_files
from vit_train.explain.explainer import Explainer, decoder_figures, true_classes
from vit_train.explain.page import write_demo
from vit_train.figures.charts import Figure, save
from vit_train.model.autoencoder import EncoderDecoder
from vit_train.trained.folder import name_unless_best, run_folder
from vit_train.trained.images import evaluated_images
from vit_train.trained.load import load_on
from vit_train.trained.model import Trained

# The side at which a photo is shown, in pixels.
VIEWING_SIDE = 224


def explain_predictions(config: ExplainConfig) -> None:
    """Draw heat maps of predictions, the attention distances of heads, and the filters.

    For a model that predicts pixels, draw its decoder's attention from a hidden patch instead. With
    html=, write only the demo page. Raise ValueError if the model has no attention, or if it does
    not have the chosen layer or class.
    """
    trained = load_on(config.ckpt, config.device, config.weights, config.data.image_size)
    if config.html is not None:
        return write_demo(trained, config, Path(config.html))
    explainer = make_explainer(trained, config)
    folder = Path(
        config.out or run_folder(trained.meta.path) / folder_name(config, trained.meta.path)
    )
    paths = [] if config.images is None else image_files(config.images)
    if paths:
        images, titles, shown = read_images(trained, paths, config.count, config.max_pixels)
    else:
        some = evaluated_images(config.data, "test", trained.meta, config.count)[0].images
        images = some.images
        titles = true_classes(some, trained.meta)
        shown = None
    if explainer is None:
        save_figures(decoder_figures(trained, config.layer, images), folder, paths)
        return
    save_figures(explainer.figures(images, titles, shown), folder, paths)
    if config.score:
        part = evaluated_images(config.data, "test", trained.meta, config.score)[0].images
        for method in explainer.methods:
            explainer.score(part, method)


def make_explainer(trained: Trained, config: ExplainConfig) -> Explainer | None:
    """Return an explainer, or None if the model predicts pixels.

    Raise ValueError for settings that the model or the method does not support.
    """
    if isinstance(trained.model, EncoderDecoder):
        if config.score or config.target is not None or config.method != ExplainConfig.method:
            raise ValueError(
                "method=, score= and target= are for classifiers, but this model predicts pixels"
            )
        return None
    if config.layer != ExplainConfig.layer and config.method not in ("attention", "all"):
        raise ValueError(
            f"layer={config.layer} is only for method=attention or all: the other methods use all "
            "layers"
        )
    return Explainer(trained, config.method, config.layer, config.target)


def save_figures(figures: Mapping[str, Figure], folder: Path, paths: Sequence[Path]) -> None:
    """Write figures as PNG files; raise ValueError if one would replace an image of `paths`."""
    files = {folder / f"{name}.png": figure for name, figure in figures.items()}
    if replaced := {path.resolve() for path in paths} & {file.resolve() for file in files}:
        raise ValueError(f"a figure would replace the image {min(replaced)}: choose another out=")
    for file, figure in files.items():
        save(figure, file)
    logger.info(f"written to {folder}/: {', '.join(file.name for file in files)}")


def folder_name(config: ExplainConfig, checkpoint: Path) -> str:
    """Return the output folder's name.

    It lists the checkpoint unless it is the best, and the settings that differ from their defaults.
    """
    parts = {
        "method": config.method,
        "layer": f"layer{config.layer}",
        "target": file_name(config.target or ""),
        "weights": config.weights,
    }
    changed = (
        part for key, part in parts.items() if getattr(config, key) != getattr(ExplainConfig, key)
    )
    return "-".join(filter(None, ("explain", name_unless_best(checkpoint), *changed)))


def read_images(
    trained: Trained, paths: Sequence[Path], count: int, max_pixels: int
) -> tuple[Tensor, list[str], Tensor]:
    """Return the first `count` readable images, their files' names, and the images for viewing.

    The first images are uint8 (N,C,H,W), at the model's size. The images for viewing are the same,
    with sides of at least VIEWING_SIDE pixels. Warn of each doubtful or unreadable image; raise
    ValueError if no image can be read.
    """
    _, height, width = trained.meta.image_shape
    scale = max(1, VIEWING_SIDE / min(height, width))
    size = (round(scale * height), round(scale * width))
    found: list[tuple[Tensor, str, Tensor]] = []
    marks: dict[Path, int] = {}
    for path in paths:
        if len(found) >= count:
            break
        try:
            image = trained.pixels(path, max_pixels, marks)
        except BrokenImage as error:
            logger.warning(f"{path} cannot be read: {error}")
            continue
        # Without marks, which the first reading has set.
        found.append((image, path.name, trained.pixels(path, max_pixels, size=size)))
    if not found:
        raise ValueError("cannot read any of the images")
    warn(marks)
    images, names, shown = zip(*found, strict=True)
    return torch.stack(images), list(names), torch.stack(shown)
