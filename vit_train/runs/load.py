"""Models rebuilt from a checkpoint file alone."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vit_train.base.memory import is_out_of_memory, require_memory
from vit_train.base.reading import Refused, read_json, require_config
from vit_train.base.text import counted
from vit_train.data.dataset import Statistics
from vit_train.model.build import bytes_of, forward_bytes, on_meta, require_few_patches
from vit_train.model.pos_embed import PositionEmbedding, resize_positions
from vit_train.model.vit import Encoder
from vit_train.runs.checkpoint import Checkpoint
from vit_train.runs.config import PREDICTING, TrainConfig, from_checkpoint
from vit_train.runs.paths import builtin_checkpoint, calibration_file, checkpoint_at, run_at
from vit_train.runs.settings import WEIGHTS
from vit_train.runs.trained import Meta, Trained
from vit_train.tasks.make import make_task
from vit_train.tasks.task import Task

# Of the images of all sources, and of the files that are classified.
CHANNELS = 3
# Temperatures that are believed, ample for those of vit-eval: logits divided by others overflow.
LEAST, MOST = 1e-3, 1e3


def portable(config: dict[str, Any]) -> dict[str, Any]:
    """Return a run's settings without the paths of the machine that trained it."""
    task = dict(config["task"])
    if "teacher" in task:
        task["teacher"] = Path(task["teacher"]).name
    data = config["data"] | {"root": "data", "download": False}
    return config | {"data": data, "task": task} | dict.fromkeys(("init_from", "resume", "extend"))


def load(
    path: str | Path,
    device: torch.device | str = "cpu",
    weights: str = "auto",
    image_size: int | None = None,
) -> Trained:
    """Load a trained model, in eval mode, and its metadata.

    The result classifies images, `load(path).predict("photo.jpg")`, and can be taken apart,
    `model, meta = load(path)`.

    `path` is a checkpoint, a run folder (its best checkpoint), a folder of runs (the newest one
    that is finished), or a model that travels with the package, such as "builtin:cifar10".
    `weights` is "ema", "raw" or "auto", which takes the averaged weights if there are any.
    `image_size` builds the model for images of another size than it was trained on, with its
    learned positions interpolated. Raise ValueError if the file is missing, damaged, or not a
    checkpoint, or if an argument is invalid.
    """
    path = builtin_checkpoint(path) or checkpoint_at(run_at(Path(path)))
    checkpoint = Checkpoint.load(path)
    try:
        model, meta = rebuild(checkpoint, path, device, weights, image_size)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise ValueError(f"out of memory while loading {path}") from error
    return Trained(model, replace(meta, temperature=known_temperature(checkpoint, meta)))


def rebuild(
    checkpoint: Checkpoint,
    path: Path,
    device: torch.device | str,
    weights: str,
    image_size: int | None,
) -> tuple[nn.Module, Meta]:
    """Build the model that a checkpoint describes, or raise ValueError. `path` is its file."""
    chosen = pick_weights(checkpoint, weights)
    if image_size is not None and image_size < 1:
        raise ValueError(f"image_size={image_size} must be at least 1")
    averaged = checkpoint.ema if chosen == "ema" else None
    state = checkpoint.model if averaged is None else averaged
    require_config(checkpoint.config, f"the config in {path}")
    config = from_checkpoint(checkpoint.config, PREDICTING)
    task = checked_task(checkpoint, config, state, image_size)
    model = task.build_model().to(device)
    model.load_state_dict(resize_positions(state, model))
    meta = Meta(
        path=path,
        config=config,
        task=task,
        classes=checkpoint.classes,
        image_shape=task.image_shape,
        statistics=statistics_of(checkpoint.mean, checkpoint.std, task.image_shape[0]),
        epoch=checkpoint.epoch,
        step=checkpoint.step,
        images_seen=checkpoint.images_seen,
        weights=chosen,
        versions=checkpoint.versions,
        fingerprint=checkpoint.fingerprint,
        seen=checked_keys(checkpoint.seen),
        seen_before=checked_keys(checkpoint.seen_before),
        checksum=checkpoint.checksum,
    )
    return model.eval(), meta


def checked_keys(seen: torch.Tensor | None) -> torch.Tensor | None:
    """Return the keys of images in a checkpoint; raise ValueError if they cannot be such."""
    if seen is not None and (seen.dtype != torch.int64 or seen.ndim != 1):
        raise ValueError("the checkpoint's keys of images must be int64 (N,)")
    return seen


def checked_task(
    checkpoint: Checkpoint,
    config: TrainConfig,
    state: dict[str, torch.Tensor],
    image_size: int | None,
) -> Task:
    """Return the checkpoint's task, for images of `image_size` if that is given.

    Raise ValueError unless its model has the shapes of `state` and takes little more memory.
    """
    channels, trained_size, _ = checkpoint.image_shape
    num_classes = len(checkpoint.classes)
    if min(num_classes, channels, trained_size) < 1:
        raise ValueError("the checkpoint has no classes, or images of size 0")
    if channels != CHANNELS:
        raise ValueError(
            f"the checkpoint is of images with {counted(channels, 'channel')}: only RGB images, "
            f"with {CHANNELS}, can be read"
        )
    if config.model.layers + config.task.layers > len(state):
        raise ValueError("the checkpoint has fewer weights than its config says")

    def at_size(size: int) -> tuple[Task, nn.Module]:
        """Return the task, and its model on the meta device, which holds shapes only."""
        task = make_task(config.task, config.model, (channels, size, size), num_classes)
        return task, on_meta(task.build_model, config.model, config.task.layers)

    task, shapes = at_size(trained_size)
    require_shapes(shapes, state)
    if image_size not in (None, trained_size):
        task, shapes = at_size(image_size)
    require_bounded_memory(config, shapes, task.image_shape)
    return task


def known_temperature(checkpoint: Checkpoint, meta: Meta) -> float | None:
    """Return the temperature in the checkpoint or in its run's folder.

    None if it is not known of these weights and this image size.
    What is not a temperature counts as unknown.
    """
    if meta.image_shape != checkpoint.image_shape:
        return None  # it was fitted on images of the other size
    value: Any = checkpoint.temperature
    if value is None:
        value = (noted_temperatures(meta.path) or {}).get(temperature_key(meta))
    return value if isinstance(value, float) and LEAST <= value <= MOST else None


def temperature_key(meta: Meta) -> str:
    """Return a key for these weights; the same file may hold others later."""
    return f"{meta.path.name} {meta.checksum[:12]}, {meta.weights} weights"


def noted_temperatures(checkpoint: Path) -> dict[str, Any] | None:
    """Return the temperatures that vit-eval has noted, by checkpoint and weights.

    None if the file is damaged or was written by something else.
    """
    file = calibration_file(checkpoint)
    try:
        noted = read_json(file)["temperatures"] if file.exists() else {}
    except (Refused, LookupError, TypeError):
        return None
    return noted if isinstance(noted, dict) else None


def statistics_of(mean: Sequence[float], std: Sequence[float], channels: int) -> Statistics:
    """Return the mean and std to normalize images with; raise ValueError if they are unusable."""
    mean, std = tuple(map(float, mean)), tuple(map(float, std))
    finite = all(map(math.isfinite, (*mean, *std)))
    if not finite or not len(mean) == len(std) == channels or min(std) <= 0:
        raise ValueError("the checkpoint's mean and std cannot normalize images")
    return Statistics(mean, std)


def require_shapes(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Raise ValueError if the weights do not have the shapes that the config describes.

    This is checked before the model takes memory, so that a small file cannot ask for a huge model.
    """
    expected = {key: value.shape for key, value in model.state_dict().items()}
    if expected != {key: value.shape for key, value in state.items()}:
        raise ValueError("the checkpoint's weights do not match its config")


def require_bounded_memory(
    config: TrainConfig, model: nn.Module, image_shape: tuple[int, int, int]
) -> None:
    """Raise ValueError if, at this image size, the model needs more memory than there is.

    Relative positions keep a table of all pairs of patches, which is not in the file; learned
    positions grow with the image.
    """
    image_size = image_shape[1]
    require_few_patches(config.model, image_size)
    positions = (each for each in model.modules() if isinstance(each, PositionEmbedding))
    tables = [table for each in positions for table in each.parameters()]
    require_memory(
        bytes_of([*tables, *model.buffers()]) + forward_bytes(config.model, image_shape),
        f"an image of {image_size} by {image_size}, with this model's positions and attention,",
        "choose a smaller data.image_size",
    )


def pick_weights(checkpoint: Checkpoint, asked: str) -> str:
    """Return "ema" or "raw"; raise ValueError if the choice is unknown or not in the checkpoint."""
    if asked not in WEIGHTS:
        raise ValueError(f"weights={asked} must be one of: {', '.join(WEIGHTS)}")
    averaged = checkpoint.ema is not None
    if asked == "ema" and not averaged:
        raise ValueError("weights=ema, but this run kept no average (train.ema_decay)")
    return "ema" if averaged and asked != "raw" else "raw"


def encoder_of(model: nn.Module) -> Encoder | None:
    """Return the model's encoder (a classifier is one, an autoencoder contains one), or None."""
    return next((each for each in model.modules() if isinstance(each, Encoder)), None)
