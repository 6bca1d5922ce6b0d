"""`vit-explain`: draw the patches behind a model's predictions, or write an interactive page."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from vit_train.base.log import logger
from vit_train.base.text import file_name
from vit_train.base.writing import output_folder
from vit_train.config.tools import ExplainConfig
from vit_train.data.decode import BrokenImage, Doubts
from vit_train.data.image_files import image_files
from vit_train.explain.demo import write_demo
from vit_train.explain.explainer import Explainer, decoder_figures, true_classes
from vit_train.figures.charts import Figure, save
from vit_train.model.autoencoder import EncoderDecoder
from vit_train.trained.folder import run_folder
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
    explainer = None
    if not isinstance(trained.model, EncoderDecoder):
        explainer = make_explainer(trained, config)
    elif config.score or config.target is not None or config.method != ExplainConfig.method:
        raise ValueError(
            "method=, score= and target= are for classifiers, but this model predicts pixels"
        )
    folder = output_folder(config.out, run_folder(trained.meta.path) / folder_name(config))
    paths = [] if config.images is None else image_files(config.images)
    if paths:
        images, titles, shown = read_images(trained, paths, config.count, config.max_pixels)
    else:
        some = evaluated_images(config.data, "test", trained.meta, config.count)[0].images
        images, titles, shown = some.images[:], true_classes(some, trained.meta), None
    figures = (
        decoder_figures(trained, config.layer, images)
        if explainer is None
        else explainer.figures(images, titles, shown)
    )
    save_figures(figures, folder, paths)
    if explainer is not None and config.score:
        part = evaluated_images(config.data, "test", trained.meta, config.score)[0].images
        for method in explainer.methods:
            explainer.score(part, method)


def make_explainer(trained: Trained, config: ExplainConfig) -> Explainer:
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


def folder_name(config: ExplainConfig) -> str:
    """Return the output folder's name; it lists the settings that differ from their defaults."""
    parts = [
        "explain",
        "" if config.method == ExplainConfig.method else config.method,
        "" if config.layer == ExplainConfig.layer else f"layer{config.layer}",
        file_name(config.target) if config.target else "",
        "" if config.weights == ExplainConfig.weights else config.weights,
    ]
    return "-".join(filter(None, parts))


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
    size = round(scale * height), round(scale * width)
    found, doubts = dict[Path, tuple[Tensor, Tensor]](), Doubts()
    for path in paths:
        if len(found) >= count:
            break
        try:
            pixels = trained.pixels(path, max_pixels, doubts)
            # Without doubts, which the first reading has noted.
            found[path] = pixels, trained.pixels(path, max_pixels, size=size)
        except BrokenImage as error:
            logger.warning(f"{path} cannot be read: {error}")
    if not found:
        raise ValueError("cannot read any of the images")
    doubts.warn()
    images, shown = map(torch.stack, zip(*found.values(), strict=True))
    return images, [path.name for path in found], shown
