"""What a trainer writes into a checkpoint, and how another one continues from it."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from vit_train.engine.schedule import Start

if TYPE_CHECKING:
    from vit_train.engine.trainer import Trainer

# The attributes that count how far a run has come.
COUNTERS = ("step", "epoch", "batch", "images_seen")


def state_of(trainer: "Trainer") -> dict[str, Any]:
    """Return everything that training changes; raise NonFinite as the guard says."""
    trainer.nonfinite.check(trainer.step)
    return {
        "model": trainer.model.state_dict(),
        "ema": trainer.ema.model.state_dict() if trainer.ema else None,
        "optimizers": trainer.optimizers.state_dict(),
        "scaler": trainer.scaler.state_dict(),
        "whole": trainer.epoch_averages.state_dict(),
        "recent": trainer.log_averages.state_dict(),
        "seconds": trainer.seconds,
        "skipped": trainer.nonfinite.skipped,
        "lr": trainer.lr_at(trainer.step - 1),
        "start": asdict(trainer.start),
        "patience": trainer.patience.state_dict(),
        **{name: getattr(trainer, name) for name in COUNTERS},
    }


def restore(trainer: "Trainer", state: dict[str, Any]) -> None:
    """Continue from this state of the same run, even in the middle of an epoch.

    Raise ValueError, KeyError or TypeError for the state of another run.
    """
    load_trained(trainer, state)
    trainer.epoch_averages.load_state_dict(state["whole"])
    trainer.log_averages.load_state_dict(state["recent"])
    trainer.nonfinite.skipped = int(state["skipped"])
    trainer.start = Start(**state["start"])
    trainer.patience.load_state_dict(state["patience"])
    batch, epoch, start = trainer.batch, trainer.epoch, trainer.start
    in_epoch = 0 <= batch <= len(trainer.train_loader)
    in_run = in_epoch and start.epoch <= epoch <= trainer.last_epoch
    if not in_run or min(trainer.step - start.step, trainer.nonfinite.skipped) < 0:
        raise ValueError(f"there is no batch {batch} of epoch {epoch} in this run")
    trainer.ready = time.perf_counter()


def extend(trainer: "Trainer", state: dict[str, Any]) -> None:
    """Begin where another run ended, with a warm-up and a cosine of this run's own.

    The epochs and steps go on counting, so that images come in new orders. Raise as `restore` does.
    """
    load_trained(trainer, state)
    if trainer.batch:
        raise ValueError("its last checkpoint is not from the end of an epoch")
    trainer.start = Start(trainer.epoch, trainer.step, state["lr"])


def load_trained(trainer: "Trainer", state: dict[str, Any]) -> None:
    """Load the weights, their average, the optimizer's moments, and the counters."""
    trainer.model.load_state_dict(state["model"])
    if trainer.ema:
        trainer.ema.model.load_state_dict(state["ema"])
    trainer.optimizers.load_state_dict(state["optimizers"])
    if state["scaler"]:  # else it was not trained in fp16, and a new scaler finds its scale
        trainer.scaler.load_state_dict(state["scaler"])
    trainer.began = time.perf_counter() - float(state["seconds"])
    for name in COUNTERS:
        setattr(trainer, name, int(state[name]))
    if min(trainer.step, trainer.epoch, trainer.images_seen) < 0:
        raise ValueError("a counter is negative")
    trainer.nonfinite.read_until = trainer.step
