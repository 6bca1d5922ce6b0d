"""`vit-explain html=FILE`: a web page that runs the model in the reader's browser."""

import gzip
from itertools import compress
from pathlib import Path

import torch

from vit_train.base.log import logger
from vit_train.base.text import printable, render
from vit_train.base.writing import write_text
from vit_train.config.tools import ExplainConfig
from vit_train.model.vit import VisionTransformer
from vit_train.trained.folder import is_builtin
from vit_train.trained.images import evaluated_images
from vit_train.trained.model import Trained

# The settings that templates/model.js supports.
SUPPORTED: dict[str, tuple[object, ...]] = {
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
    "registers": (0,),
}
# With more patches, a browser takes seconds for an image.
MOST_IN_BROWSER = 400


def write_demo(trained: Trained, config: ExplainConfig, path: Path) -> None:
    """Write a web page that runs the model on some test images and on the reader's photos.

    Raise ValueError if the page's JavaScript does not support the model.
    """
    model = require_supported(trained)
    meta = trained.meta
    images = evaluated_images(config.data, "test", meta, config.count)[0].images
    tensors = {key: value for key, value in model.state_dict().items() if "pos_embed" not in key}
    for table in model.pos_embed:  # at most one, because SUPPORTED has only positions_at=stem
        tensors["positions"] = table()
    halves = torch.cat([value.detach().cpu().flatten() for value in tensors.values()]).half()
    meta.require_finite(halves)
    # First all low bytes, then all high bytes, because this compresses better.
    planes = halves.view(torch.uint8).view(-1, 2).t().contiguous()
    pixels = images.images[:].permute(0, 2, 3, 1).contiguous()
    content = {
        "title": printable(config.ckpt if is_builtin(meta.path) else meta.config.data.title),
        "classes": [printable(name) for name in meta.classes],
        "labels": images.labels.tolist(),
        "tensors": [(name, value.numel()) for name, value in tensors.items()],
        "parameters": sum(each.numel() for each in model.parameters()),
        "size": model.image_shape[1],
        "stretches": meta.fit == "stretch",
        "grid": model.grid[0],
        "patch": model.config.patch_size,
        "width": model.config.embed_dim,
        "depth": model.config.depth,
        "heads": model.config.num_heads,
        "positions": model.config.positions,
        "hidden": model.config.hidden_dim,
        "eps": model.config.eps,
        "classToken": int(model.config.has_class_token),
        "temperature": meta.temperature or 1.0,
        "scale": trained.normalize.scale.flatten().tolist(),
        "shift": trained.normalize.shift.flatten().tolist(),
    }
    packed = gzip.compress(planes.numpy().tobytes() + pixels.numpy().tobytes(), mtime=0)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render("explain", "demo.html", model=content, weights=packed))
    logger.info(f"written to {path} ({path.stat().st_size / 1e6:.1f} MB): open it in a browser")


def require_supported(trained: Trained) -> VisionTransformer:
    """Return the model; raise ValueError if the demo page does not support it."""
    model = trained.model
    config = trained.meta.config
    if type(model) is not VisionTransformer:  # a subclass may compute anything else
        raise ValueError(
            "html= needs a Vision Transformer that classifies, but the checkpoint has "
            f"model.name={config.model.name} and task={config.task.name}"
        )
    rows, columns = model.grid
    reasons = {
        "task=tags": not trained.meta.task.one_class,
        "data.fit=pad": trained.meta.fit == "pad",
        "images that are not square": rows != columns,
        f"more than {MOST_IN_BROWSER} patches (this model has {rows * columns})": rows * columns
        > MOST_IN_BROWSER,
    }
    for name, values in SUPPORTED.items():
        value = getattr(model.config, name)
        reasons[f"model.{name}={value}"] = value not in values
    if any(reasons.values()):
        raise ValueError(f"html= does not support {', '.join(compress(reasons, reasons.values()))}")
    return model
