"""`vit-explain`: draw where a model's predictions come from, or write a page that shows it live."""

import gzip
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit_train.base.text import file_name, printable, render
from vit_train.base.writing import require_own_folder, write_text
from vit_train.data.dataset import sample
from vit_train.data.image_files import BrokenImage, Doubts, image_files
from vit_train.engine.precision import keep_freed_memory, pick_device
from vit_train.explain.explainer import Explainer, decoder_figures, true_classes
from vit_train.figures.charts import save
from vit_train.model.autoencoder import Autoencoder
from vit_train.model.vit import VisionTransformer
from vit_train.runs.images import evaluated_images
from vit_train.runs.paths import is_builtin, run_folder
from vit_train.runs.settings import ExplainConfig
from vit_train.runs.trained import Trained, load

logger = logging.getLogger(__name__)

TEMPLATE = Path(__file__).with_name("templates") / "demo.html"
# The settings of the models that templates/model.js computes.
COMPUTED: dict[str, tuple[object, ...]] = {
    "stem": ("patches",),
    "patch_overlap": (0,),
    "activation": ("gelu",),
    "pre_norm": (True,),
    "final_norm": (True,),
    "qk_norm": (False,),
    "layer_scale": (None,),
    "positions": ("none", "learned", "learned_2d", "sinusoidal", "sincos_2d"),
    "positions_at": ("stem",),
    "head": ("token", "gap"),
}
# More patches take a browser seconds for an image; more parameters, tens of megabytes.
MOST_PATCHES, MOST_PARAMETERS = 400, 10_000_000


def explain_predictions(config: ExplainConfig) -> None:
    """Draw the heat maps of predictions, the distances of heads, and the filters.

    For a model that predicts pixels, draw the attention of its decoder from a hidden patch. With
    html=, write the demo page instead. Raise ValueError for a model without attention, and for a
    layer or class that it does not have.
    """
    keep_freed_memory()
    trained = load(config.ckpt, pick_device(config.device), config.weights, config.data.image_size)
    if config.html is not None:
        return write_demo(trained, config, Path(config.html))
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
    if replaced := {path.resolve() for path in paths} & {file.resolve() for file in files}:
        raise ValueError(f"this would replace the image {min(replaced)}: choose another out=")
    folder.mkdir(parents=True, exist_ok=True)
    for file, figure in files.items():
        save(figure, file)
    logger.info(f"written to {folder}/: {', '.join(file.name for file in files)}")
    if explainer is not None and config.score:
        explainer.score(sample(part, config.score))


def folder_name(config: ExplainConfig) -> str:
    """Return the folder's name, with every setting that differs from its default."""
    parts = [
        config.method != ExplainConfig.method and config.method,
        config.layer != ExplainConfig.layer and f"layer{config.layer}",
        config.target and file_name(config.target),
        config.weights != ExplainConfig.weights and config.weights,
    ]
    return "-".join(["explain", *(part for part in parts if part)])


def read_images(
    trained: Trained, paths: Sequence[Path], count: int, max_pixels: int, doubts: Doubts
) -> tuple[Tensor, list[str]]:
    """Return the first `count` images that can be read, uint8 (N,C,S,S), and their files' names.

    Raise ValueError if none of them can.
    """
    found: dict[Path, Tensor] = {}
    for path in paths:
        if len(found) < count:
            try:
                found[path] = trained.pixels(path, max_pixels, doubts)
            except BrokenImage as error:
                logger.warning(f"{path} cannot be read: {error}")
    if not found:
        raise ValueError("none of the images can be read")
    return torch.stack(list(found.values())), [path.name for path in found]


def write_demo(trained: Trained, config: ExplainConfig, path: Path) -> None:
    """Write a page in which the model runs, on its first test images and on photos.

    Raise ValueError for a model that the page's JavaScript does not compute.
    """
    model, meta = require_computed(trained), trained.meta
    images = evaluated_images(config.data, "test", meta)[0].images
    images = images.subset(torch.arange(min(config.count, len(images))))
    tensors = {key: value for key, value in model.state_dict().items() if "pos_embed" not in key}
    tensors |= zip(["positions"], (table() for table in model.pos_embed), strict=False)
    halves = torch.cat([value.detach().cpu().flatten() for value in tensors.values()]).half()
    meta.require_finite(halves)
    # All low bytes, then all high ones, which compress better apart.
    planes = halves.view(torch.uint8).view(-1, 2).t().contiguous()
    pixels = images.images.permute(0, 2, 3, 1).contiguous()
    content: dict[str, Any] = {
        "title": printable(config.ckpt if is_builtin(meta.path) else meta.config.data.name),
        "classes": [printable(name) for name in meta.classes],
        "labels": images.labels.tolist(),
        "tensors": [(name, value.numel()) for name, value in tensors.items()],
        "parameters": sum(each.numel() for each in model.parameters()),
        "size": model.image_shape[1],
        "grid": model.grid,
        "patch": model.config.patch_size,
        "width": model.config.embed_dim,
        "depth": model.config.depth,
        "heads": model.config.num_heads,
        "hidden": model.config.hidden_dim,
        "eps": model.config.eps,
        "classToken": int(model.config.has_class_token),
        "temperature": meta.temperature or 1.0,
        "scale": trained.normalize.scale.flatten().tolist(),
        "shift": trained.normalize.shift.flatten().tolist(),
    }
    weights = gzip.compress(planes.numpy().tobytes() + pixels.numpy().tobytes(), mtime=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render(TEMPLATE, model=content, weights=weights))
    logger.info(f"written to {path}, which any browser opens ({path.stat().st_size / 1e6:.1f} MB)")


def require_computed(trained: Trained) -> VisionTransformer:
    """Return the model; raise ValueError if the demo page does not compute it."""
    model, config = trained.model, trained.meta.config
    if not isinstance(model, VisionTransformer):
        raise ValueError(
            "html= needs a Vision Transformer that classifies: this is model.name="
            f"{config.model.name} with task={config.task.name}"
        )
    for name, values in COMPUTED.items():
        if (value := getattr(model.config, name)) not in values:
            raise ValueError(f"html= does not support model.{name}={value}")
    parameters = sum(each.numel() for each in model.parameters())
    if model.grid**2 > MOST_PATCHES or parameters > MOST_PARAMETERS:
        raise ValueError(
            f"html= is for at most {MOST_PATCHES} patches and {MOST_PARAMETERS:,} parameters: this "
            f"model has {model.grid**2} and {parameters:,}"
        )
    return model
