"""Rebuild a trained model from a checkpoint file alone, with its calibration."""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import torch
from torch import nn

from vit_train.base.reading import Refused, read_object, typed
from vit_train.config.fields import ImageSize, Size, size_of
from vit_train.config.model import ViTConfig
from vit_train.config.run import PREDICTING, TrainConfig, from_checkpoint
from vit_train.config.tools import WEIGHTS
from vit_train.data.dataset import CHANNELS, valid_statistics
from vit_train.loop.device import keep_freed_memory, pick_device
from vit_train.loop.state import State
from vit_train.model.build import on_meta, require_model_fits
from vit_train.model.patches import grid_of
from vit_train.model.positions import resize_positions
from vit_train.tasks import Task, make_task
from vit_train.trained.checkpoint import Checkpoint, Facts
from vit_train.trained.folder import (
    builtin_checkpoint,
    calibration_file,
    checkpoint_at,
    run_at,
    run_folder,
)
from vit_train.trained.model import Meta, Trained
from vit_train.trained.own_code import own_code, warn_of_changes

# Temperatures outside of these limits cannot come from real logits: they count as unknown.
LEAST = 1e-6
MOST = 1e6


def load(
    path: str | Path,
    device: torch.device | str = "cpu",
    weights: str = "auto",
    image_size: ImageSize | None = None,
) -> Trained:
    """Load a trained model in eval mode onto `device`, with the model's metadata.

    To classify an image, call `load(path).predict("photo.jpg")`. To get the model itself, unpack
    the result: `model, meta = load(path)`.

    `path` is a checkpoint, a run's folder (which stands for its best checkpoint), a folder of runs
    (its newest finished run), or a built-in model, "builtin:cifar10". `weights` is "ema" for
    averaged weights, "raw", or "auto" (averaged weights if there are any). `image_size`, if given,
    replaces the training image size; learned positions are interpolated. Warn if your own code has
    changed since the run. Raise ValueError if the file is missing, damaged, or not a checkpoint, or
    if an argument is invalid.
    """
    file = builtin_checkpoint(path) or checkpoint_at(run_at(Path(path)))
    checkpoint = Checkpoint.load(file)
    chosen, state = pick_weights(checkpoint, weights)
    config = from_checkpoint(checkpoint.config, PREDICTING)
    task = checked_task(checkpoint, config, state, image_size)
    model = task.build_model().to(device)
    if isinstance(config.model, ViTConfig):
        state = resize_positions(
            state, grid_of(checkpoint.image_shape[1:], config.model.patch_size), model
        )
    model.load_state_dict(state)
    warn_of_changes(run_folder(file), own_code([type(task), *map(type, model.modules())]))
    meta = Meta(
        path=file,
        config=config,
        task=task,
        image_shape=task.image_shape,
        statistics=valid_statistics(checkpoint.mean, checkpoint.std),
        epoch=checkpoint.epoch,
        images_seen=checkpoint.images_seen,
        weights=chosen,
        **{each.name: getattr(checkpoint, each.name) for each in fields(Facts)},
    )
    if meta.image_shape != checkpoint.image_shape:
        return Trained(model.eval(), replace(meta, temperature=None, thresholds={}))
    noted = saved_calibration(file) or Calibration({})
    temperature = noted.temperatures.get(meta.key, meta.temperature)
    calibrated = replace(
        meta,
        temperature=temperature if LEAST <= (temperature or 0.0) <= MOST else None,
        thresholds=noted.thresholds.get(meta.key, meta.thresholds),
    )
    return Trained(model.eval(), calibrated)


def load_on(
    path: str | Path,
    device: str,
    weights: str = "auto",
    image_size: ImageSize | None = None,
) -> Trained:
    """Load a model for a command, as `load` does, onto the device that `device` names."""
    keep_freed_memory()
    return load(path, pick_device(device), weights, image_size)


def pick_weights(checkpoint: Checkpoint, asked: str) -> tuple[str, State]:
    """Return the name of a checkpoint's weights, "ema" or "raw", and the weights.

    `asked` is "ema", "raw" or "auto" (averaged weights if there are any). Raise ValueError for any
    other name, and if the checkpoint lacks averaged weights that are asked for.
    """
    if asked not in WEIGHTS:
        raise ValueError(f"weights={asked} must be one of: {', '.join(WEIGHTS)}")
    if asked == "ema" and checkpoint.ema is None:
        raise ValueError(
            "weights=ema: this run kept no moving average of the weights (train.ema_decay): "
            "use weights=raw"
        )
    if asked == "raw" or checkpoint.ema is None:
        return "raw", checkpoint.model
    return "ema", checkpoint.ema


def checked_task(
    checkpoint: Checkpoint,
    config: TrainConfig,
    state: State,
    image_size: ImageSize | None,
) -> Task:
    """Return the checkpoint's task at `image_size` or, if None, at the training image size.

    Raise ValueError unless the shapes in `state` match the model, and the model fits into memory.
    Both are checked before memory is allocated, so that a small file cannot demand a huge model.
    """

    def at_size(size: Size) -> tuple[Task, nn.Module]:
        """Return the task, and its model on the meta device, which holds shapes only."""
        task = make_task(config.task, config.model, (CHANNELS, *size), len(checkpoint.classes))
        return task, on_meta(task.build_model, config.model)

    shape = checkpoint.image_shape
    if len(shape) != 3 or shape[0] != CHANNELS or min(shape) < 1:
        raise ValueError(
            f"the checkpoint's image_shape is {list(shape)}, not {CHANNELS} colors, a height and a "
            "width: the file must be damaged"
        )
    task, model = at_size(shape[1:])
    expected = {key: value.shape for key, value in model.state_dict().items()}
    if expected != {key: value.shape for key, value in state.items()}:
        raise ValueError(
            "the checkpoint's weights do not match its config: the file must be damaged"
        )
    if image_size is not None:
        task, model = at_size(size_of("image_size", image_size))
    require_model_fits(config.model, model, task.image_shape)
    return task


@dataclass(frozen=True)
class Calibration:
    """The content of a run's calibration file: temperatures and thresholds by `Meta.key`."""

    temperatures: dict[str, float | None]
    thresholds: dict[str, dict[str, float | None]] = field(default_factory=dict)


def saved_calibration(checkpoint: Path) -> Calibration | None:
    """Return a run's saved calibration, or an empty one if there is no calibration file.

    Return None if the file is damaged, or is not from vit-eval.
    """
    try:
        content = read_object(calibration_file(checkpoint))
        return typed(Calibration, content) if content else Calibration({})
    except Refused:
        return None
