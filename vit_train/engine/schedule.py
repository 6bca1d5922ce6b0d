"""The learning rate as a pure function of the step."""

import math
from dataclasses import dataclass

from vit_train.engine.config import OptimConfig


@dataclass(frozen=True)
class Start:
    """Where a run begins to count: at zero or, if it extends another run, where that one ended."""

    epoch: int = 0
    step: int = 0
    # The learning rate from which the warm-up leads to the peak.
    lr: float = 0.0

    def __post_init__(self) -> None:
        if min(self.epoch, self.step) < 0 or not 0 <= self.lr < math.inf:
            raise ValueError(f"no run begins like this: {self}")


FRESH = Start()


def warmup_steps(config: OptimConfig, steps_per_epoch: int, epochs: int) -> int:
    """Return the steps of the warm-up: at most half of all."""
    return min(round(config.warmup_epochs * steps_per_epoch), steps_per_epoch * epochs // 2)


def learning_rate(
    step: int, config: OptimConfig, steps_per_epoch: int, epochs: int, start: Start = FRESH
) -> float:
    """Return the learning rate of a step, counted from 0.

    It is a linear warm-up, of at most half the steps, followed by half a cosine (Loshchilov &
    Hutter 2017). A run that extends another has both once more, from the rate at which that one
    ended: re-warming and re-decaying (Ibrahim et al. 2024, arXiv:2403.08763). With
    `lr_every=epoch` an epoch counts as one step.
    """
    step -= start.step
    if config.lr_every == "epoch":
        step, steps_per_epoch = step // steps_per_epoch, 1
    if step < 0:  # of a run that is stopped before its first step
        return start.lr
    total = steps_per_epoch * epochs
    warmup = warmup_steps(config, steps_per_epoch, epochs)
    if step < warmup:
        return start.lr + (config.lr - start.lr) * (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    cosine = (1 + math.cos(math.pi * min(1.0, progress))) / 2
    return config.min_lr + (config.lr - config.min_lr) * cosine
