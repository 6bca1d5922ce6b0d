"""From a checkpoint back to a model, needing nothing but the file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vit_train.config import TrainConfig, from_checkpoint
from vit_train.data.dataset import Dataset, Statistics
from vit_train.engine.checkpoint import find_checkpoint, read_checkpoint
from vit_train.model.positions import resize_positions
from vit_train.model.registry import build_model


@dataclass(frozen=True)
class Meta:
    """What a trained model's numbers mean."""

    path: Path
    config: TrainConfig
    classes: list[str]
    image_shape: tuple[int, int, int]
    statistics: Statistics
    epoch: int
    step: int
    images_seen: int
    weights: str
    versions: dict[str, str]


def about_run(
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
    ValueError if the file is missing, damaged, or not a checkpoint.
    """
    path = find_checkpoint(Path(path))
    content = read_checkpoint(path, device)
    chosen = pick_weights(content, weights)
    config = from_checkpoint(content["config"])
    channels, trained_size, _ = content["image_shape"]
    size = image_size or trained_size
    image_shape = (channels, size, size)
    model = build_model(config.model, image_shape, len(content["classes"])).to(device)
    state = content["ema" if chosen == "ema" else "model"]
    model.load_state_dict(resize_positions(state, model))
    meta = Meta(
        path=path,
        config=config,
        classes=content["classes"],
        image_shape=image_shape,
        statistics=Statistics(tuple(content["mean"]), tuple(content["std"])),
        epoch=content["epoch"],
        step=content["step"],
        images_seen=content["images_seen"],
        weights=chosen,
        versions=content["versions"],
    )
    return model.eval(), meta


def pick_weights(content: dict[str, Any], asked: str) -> str:
    """ "ema" or "raw"; ValueError if the average is asked for and there is none."""
    averaged = content["ema"] is not None
    if asked == "ema" and not averaged:
        raise ValueError("weights=ema, but this run kept no average (train.ema_decay)")
    return "ema" if averaged and asked != "raw" else "raw"
