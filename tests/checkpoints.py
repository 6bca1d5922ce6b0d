"""Checkpoints that tests write: small ones, changed ones, and such as no run would write."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from vit_train.base.writing import save_archive
from vit_train.loop.state import AveragesState, RandomState, Start, TrainerState
from vit_train.trained import checkpoint
from vit_train.trained.checkpoint import Checkpoint

ABOUT: dict[str, Any] = {
    "config": {}, "classes": ["a", "b"], "image_shape": (3, 8, 8), "mean": (0.5, 0.5, 0.5),
    "std": (1.0, 1.0, 1.0), "versions": {}, "fingerprint": "",
}  # fmt: skip


def resuming(**changes: Any) -> TrainerState:
    """The state of a trainer of nothing, with these changes."""
    state = TrainerState(
        model={}, ema=None, optimizers=[], scaler={}, random=RandomState(torch.get_rng_state(), []),
        epoch_averages=AveragesState(torch.zeros(1), 0, 0.0),
        log_averages=AveragesState(torch.zeros(1), 0, 0.0), best=None,
        start=Start(), step=0, epoch=0, batch=0, images_seen=0, skipped=0, lr=0.1, seconds=0.0,
    )  # fmt: skip
    return replace(state, **changes)


def sample(**changes: Any) -> Checkpoint:
    """A checkpoint of nothing, with these changes."""
    return replace(Checkpoint(**vars(resuming()), **ABOUT), **changes)


def write(path: Path, keep: int = 0, **changes: Any) -> None:
    save_archive(path, sample(**changes).to_bytes(), keep)


def rewrite(path: Path, **changes: Any) -> None:
    """Change fields of a checkpoint in its file."""
    path.write_bytes(replace(Checkpoint.load(path), **changes).to_bytes())


def forge(path: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], Any]) -> None:
    """Change a checkpoint's JSON and tensors to anything, with a checksum that is right."""
    content, tensors = checkpoint.disassemble(Checkpoint.load(path))
    change(content, tensors)
    digest = checkpoint.checksum(content, tensors)
    described = {"format": checkpoint.FORMAT, "checksum": digest, "content": content}
    path.write_bytes(save(tensors, {checkpoint.KEY: json.dumps(described)}))
