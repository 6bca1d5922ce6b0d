"""The page of `vit-explain html=`: a model that runs in a browser, and how it learned."""

import gzip
from pathlib import Path

import torch
from torch import Tensor, nn

from vit_train.base.log import logger
from vit_train.base.text import printable, render
from vit_train.base.writing import write_text
from vit_train.config.model import Choices, unsupported
from vit_train.config.tools import ExplainConfig
from vit_train.data.dataset import ImageSet
from vit_train.explain.attribution import patch_maps
from vit_train.explain.explainer import Explainer
from vit_train.model.build import parameter_count
from vit_train.model.vit import VisionTransformer
from vit_train.trained.folder import CHECKPOINTS, is_builtin, run_folder
from vit_train.trained.images import evaluated_images
from vit_train.trained.load import load_on
from vit_train.trained.model import Trained

# The settings that templates/model.js supports.
SUPPORTED: Choices = {
    "stem": ("patches",),
    "patch_overlap": (0,),
    "attention": ("softmax",),
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
# The most earlier epochs that the page shows, and the test images for the accuracy of each.
MOST_EPOCHS = 10
EVALUATED = 1000


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
    pixels = images.images.permute(0, 2, 3, 1).contiguous()
    epochs, recordings = record(trained, config, images)
    content = {
        "title": printable(config.ckpt if is_builtin(meta.path) else meta.config.data.title),
        "classes": [printable(name) for name in meta.classes],
        "labels": images.labels.tolist(),
        "tensors": [(name, value.numel()) for name, value in tensors.items()],
        "parameters": parameter_count(model),
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
        "epochs": epochs,
    }
    packed = gzip.compress(
        b"".join(each.numpy().tobytes() for each in (planes, pixels, *recordings)), mtime=0
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, render("explain", "demo.html", model=content, weights=packed))
    logger.info(f"written to {path} ({path.stat().st_size / 1e6:.1f} MB): open it in a browser")


def kept_epochs(trained: Trained) -> list[Path]:
    """Return checkpoints of earlier epochs that the run kept, from the first on, evenly spaced."""
    by_epoch = {
        int(file.stem.removeprefix("epoch-")): file
        for file in run_folder(trained.meta.path).glob(f"{CHECKPOINTS}/epoch-*.safetensors")
    }
    earlier = [by_epoch[epoch] for epoch in sorted(by_epoch) if epoch < trained.meta.epoch]
    return earlier[:: -(-len(earlier) // MOST_EPOCHS) or 1]


def record(
    trained: Trained, config: ExplainConfig, images: ImageSet
) -> tuple[list[dict[str, object]], list[Tensor]]:
    """Record how the model learned: its answers for `images` after each kept epoch, and now.

    Return a dict for each epoch, and the uint8 tensors of all `snapshot`s. Both lists are empty if
    the run kept no earlier epoch.
    """
    epochs: list[dict[str, object]] = []
    recordings: list[Tensor] = []
    if kept := kept_epochs(trained):
        part = evaluated_images(config.data, "test", trained.meta, EVALUATED)[0].images
        earlier = (
            load_on(file, config.device, config.weights, config.data.image_size) for file in kept
        )
        for each in (*earlier, trained):
            predicted = Explainer(each).probabilities(part.images).argmax(dim=1)
            logits, *pictured = snapshot(each, images.images)
            recordings += pictured
            epochs.append(
                {
                    "epoch": each.meta.epoch,
                    "accuracy": (predicted == part.labels).double().mean().item(),
                    "images": len(part),
                    "logits": logits.tolist(),
                }
            )
    return epochs, recordings


@torch.no_grad()
def snapshot(trained: Trained, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return what the page shows of an epoch, for uint8 images (N,3,H,W).

    The logits (N,K); the attention of what the head reads, (N·L·H,R,C); and the positions' cosine
    similarities (R·C,R·C), or a single number without positions. Attention a is stored as uint8
    255 √a, a cosine c as 127.5 (c + 1).
    """
    model = require_supported(trained)
    logits, layers = model.forward(trained.normalize(images.to(trained.device)), True)
    attention = torch.stack(layers, dim=1).flatten(0, 2)  # (N·L·H,T,T)
    maps = patch_maps(attention, model.grid, model.config.has_class_token)
    cosines = logits.new_zeros(1)
    for table in model.pos_embed:
        places = nn.functional.normalize(table()[0, model.config.num_prefix_tokens :], dim=1)
        cosines = places @ places.T
    return (
        logits.cpu(),
        (255 * maps.sqrt()).round().byte().cpu(),
        (127.5 * (cosines + 1)).round().byte().cpu(),
    )


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
    found = [name for name, applies in reasons.items() if applies]
    found += unsupported(model.config, SUPPORTED)
    if found:
        raise ValueError(f"html= does not support {', '.join(found)}")
    return model
