"""From a checkpoint back to a model, needing nothing but the file."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vit_train.config import WEIGHTS, TrainConfig, from_checkpoint
from vit_train.data.dataset import Dataset, Statistics
from vit_train.engine.checkpoint import find_checkpoint, read_checkpoint
from vit_train.engine.config import require_choice
from vit_train.files.plain import require_config
from vit_train.limits import gigabytes, is_out_of_memory
from vit_train.model.budget import attention_bytes, bytes_of, on_meta
from vit_train.model.config import differences
from vit_train.model.pos_embed import resize_positions
from vit_train.model.vit import Encoder
from vit_train.tasks.registry import make_task
from vit_train.tasks.task import Task

# What opening a checkpoint may take besides its weights: its buffers, one image's attention.
MORE_BYTES = 10**9
# What a file that is sealed like a checkpoint, but made by others, may lead to.
MISFITS = (LookupError, TypeError, AttributeError, RuntimeError, ArithmeticError, RecursionError)


@dataclass(frozen=True)
class Meta:
    """What a trained model's numbers mean."""

    path: Path
    config: TrainConfig
    task: Task
    classes: list[str]
    image_shape: tuple[int, int, int]
    statistics: Statistics
    epoch: int
    step: int
    images_seen: int
    weights: str
    versions: dict[str, str]
    # Of the data it was trained on; empty in files from before it was kept.
    fingerprint: str


def run_metadata(
    config: dict[str, Any], data: Dataset, statistics: Statistics, versions: dict[str, str]
) -> dict[str, Any]:
    """The part of a checkpoint that does not change while training; `load` reads it back."""
    return {
        "config": config,
        "classes": list(data.classes),
        "image_shape": list(data.image_shape),
        "mean": list(statistics.mean),
        "std": list(statistics.std),
        "versions": versions,
        "fingerprint": data.fingerprint,
    }


def load(
    path: str | Path,
    device: torch.device | str = "cpu",
    weights: str = "auto",
    image_size: int | None = None,
) -> tuple[nn.Module, Meta]:
    """Load a trained model, in eval mode, and its meta-data.

    `path` is a checkpoint or a run folder (its best checkpoint). `weights` is "ema", "raw" or
    "auto": the averaged weights where there are any. `image_size` builds the model for images of
    another size than it was trained on, with its learned positions interpolated. Raises
    ValueError if the file is missing, damaged, or not a checkpoint, and for other values.
    """
    path = find_checkpoint(Path(path))
    content = read_checkpoint(path, device)
    try:
        return rebuild(content, path, device, weights, image_size)
    except MISFITS as error:
        if is_out_of_memory(error):
            raise ValueError(f"out of memory while loading {path}: {error}") from error
        raise ValueError(f"{path} is not a checkpoint of this version of vit-train") from error


def rebuild(
    content: dict[str, Any],
    path: Path,
    device: torch.device | str,
    weights: str,
    image_size: int | None,
) -> tuple[nn.Module, Meta]:
    """The model that a checkpoint describes; one of MISFITS or ValueError if it describes none."""
    chosen = pick_weights(content, weights)
    if image_size is not None and image_size < 1:
        raise ValueError(f"image_size={image_size} must be at least 1")
    state = content["ema" if chosen == "ema" else "model"]
    require_config(content["config"], f"the config in {path}")
    config = from_checkpoint(content["config"])
    channels, trained_size, _ = content["image_shape"]
    num_classes = len(content["classes"])
    if min(num_classes, channels, trained_size) < 1:
        raise ValueError(f"{path} has images or classes of size 0")

    if config.model.layers + config.task.layers > len(state):
        raise ValueError("the checkpoint has fewer weights than its config says")

    def at_size(size: int) -> tuple[Task, nn.Module]:
        """The task, and its model as shapes alone."""
        task = make_task(config.task, config.model, (channels, size, size), num_classes)
        return task, on_meta(task.build_model, config.model, config.task.layers)

    task, shapes = at_size(trained_size)
    require_shapes(shapes, state)
    if image_size not in (None, trained_size):
        task, shapes = at_size(image_size)
    require_bounded_memory(config, shapes, task.image_shape[1])
    model = task.build_model().to(device)
    model.load_state_dict(resize_positions(state, model))
    meta = Meta(
        path=path,
        config=config,
        task=task,
        classes=[str(name) for name in content["classes"]],
        image_shape=task.image_shape,
        statistics=statistics_of(content, channels),
        epoch=int(content["epoch"]),
        step=int(content["step"]),
        images_seen=int(content["images_seen"]),
        weights=chosen,
        versions=dict(content["versions"]),
        fingerprint=str(content.get("fingerprint", "")),
    )
    return model.eval(), meta


def statistics_of(content: dict[str, Any], channels: int) -> Statistics:
    """What images are normalised with; ValueError if no image can be."""
    mean, std = (tuple(map(float, content[name])) for name in ("mean", "std"))
    finite = all(map(math.isfinite, (*mean, *std)))
    if not finite or not len(mean) == len(std) == channels or min(std) <= 0:
        raise ValueError("the checkpoint's mean and std normalise no image")
    return Statistics(mean, std)


def require_shapes(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Refuse weights of other shapes than the config's before any memory is taken for these.

    So a small file cannot ask for a huge model.
    """
    expected = {key: value.shape for key, value in model.state_dict().items()}
    if expected != {key: value.shape for key, value in state.items()}:
        raise ValueError("the checkpoint's weights are not those of its config")


def require_bounded_memory(config: TrainConfig, model: nn.Module, image_size: int) -> None:
    """Refuse what would take far more than the weights in the file, at this image size.

    Relative positions keep a table of all pairs of patches, which the file has not; learned ones
    grow with the image.
    """
    tables = {name: part for name, part in model.named_parameters() if "pos_embed" in name}
    more = bytes_of([*tables.values(), *model.buffers()])
    more += attention_bytes(config.model, image_size)
    if more > MORE_BYTES:
        raise ValueError(
            f"images of {image_size} by {image_size} would take {gigabytes(more)} for this model's "
            "positions and attention: choose a smaller data.image_size"
        )


def pick_weights(content: dict[str, Any], asked: str) -> str:
    """ "ema" or "raw"; ValueError if what is asked for is neither known nor there."""
    require_choice("weights", asked, WEIGHTS)
    averaged = content["ema"] is not None
    if asked == "ema" and not averaged:
        raise ValueError("weights=ema, but this run kept no average (train.ema_decay)")
    return "ema" if averaged and asked != "raw" else "raw"


def init_encoder(path: str | Path, model: nn.Module) -> None:
    """Give the model the encoder of a trained one: all but its head or its decoder.

    Learned positions are resized where the images have another size. ValueError if there is no
    such encoder, or one of another shape.
    """
    trained, _ = load(path)
    theirs, ours = encoder_of(trained), encoder_of(model)
    if theirs is None or ours is None:
        raise ValueError(f"init_from={path}: only a Vision Transformer can begin from another")
    differing = differences(theirs.config, ours.config)
    if theirs.image_shape[0] != ours.image_shape[0]:
        differing.append("channels")
    if differing:
        raise ValueError(f"init_from={path} has an encoder that differs in {', '.join(differing)}")
    state = resize_positions(theirs.encoder_state(), ours)
    ours.load_state_dict(state, strict=False)


def encoder_of(model: nn.Module) -> Encoder | None:
    """A classifier is one itself; an autoencoder has one."""
    return next((each for each in model.modules() if isinstance(each, Encoder)), None)
