"""A checkpoint is one self-contained file, written atomically and read as plain data."""

import math
import os
import pickle
import random
import warnings
from pathlib import Path
from typing import Any

import torch

from vit_train.engine.metrics import Evaluation
from vit_train.engine.trainer import Observer, Trainer, TrainLog

FORMAT = "vit_train checkpoint 2"


def rng_states() -> dict[str, Any]:
    """The random states that training draws from outside its own generators (dropout)."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    version, internal, gauss = random.getstate()
    return {"torch": torch.get_rng_state(), "cuda": cuda, "python": [version, internal, gauss]}


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write beside the target, flush to the disk, then rename: a reader sees the old or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        torch.save({"format": FORMAT, **content}, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def find_checkpoint(path: Path) -> Path:
    """A run folder means its best checkpoint, or its last where there is no best."""
    if not path.is_dir():
        return path
    for name in ("best.pt", "last.pt"):
        candidate = path / "checkpoints" / name
        if candidate.exists():
            return candidate
    raise ValueError(f"{path} has no checkpoints/best.pt or last.pt: name a run folder or a file")


def read_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The file's content; only tensors and plain values are ever unpickled."""
    if not path.is_file():
        raise ValueError(f"no checkpoint at {path}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a foreign file is refused below, in our words
            content = torch.load(path, map_location=device, weights_only=True)
    except (
        pickle.UnpicklingError,
        RuntimeError,
        EOFError,
        OSError,
        LookupError,
        ValueError,
    ) as error:
        raise ValueError(
            f"cannot read {path}: it is damaged, or not a checkpoint of vit-train"
        ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is not a checkpoint of this version of vit-train")
    return content


class CheckpointKeeper(Observer):
    """Keeps `last.pt`, and `best.pt` by validation, in the run's checkpoints/ folder.

    `about` is what the weights mean: config, classes, normalisation, versions.
    """

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        self.last_path, self.best_path = folder / "last.pt", folder / "best.pt"
        self.about = about
        self.best_val: Evaluation | None = None
        self.best_epoch = 0

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        if val is not None and val.score > self.best_score:
            self.best_val, self.best_epoch = val, trainer.epoch
            save_checkpoint(self.best_path, self._content(trainer))
        save_checkpoint(self.last_path, self._content(trainer))

    def on_stop(self, trainer: Trainer) -> None:
        save_checkpoint(self.last_path, self._content(trainer))

    def _content(self, trainer: Trainer) -> dict[str, Any]:
        return {**self.about, **trainer.state_dict(), "rng": rng_states(), "best": self.best()}

    @property
    def best_score(self) -> float:
        return -math.inf if self.best_val is None else self.best_val.score

    def best(self) -> dict[str, float] | None:
        """The best epoch so far and its validation; None without validation."""
        if self.best_val is None:
            return None
        return {"epoch": self.best_epoch, **self.best_val.values}
