"""The learning-rate schedule and early stopping."""

import math
from dataclasses import dataclass

from vit_train.engine.config import OptimConfig
from vit_train.engine.metrics import Evaluation


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


@dataclass(frozen=True)
class PatienceState:
    """The best validation score so far, if there is one, and the epochs since then."""

    best_score: float | None = None
    waited: int = 0


class Patience:
    """Counts the epochs since the best one; `epochs` is how many are waited for, None for ever."""

    def __init__(self, epochs: int | None) -> None:
        self.epochs = epochs
        self.best_score: float | None = None
        self.waited = 0

    def note(self, val: Evaluation | None) -> None:
        """Count an epoch, given its validation; an equal score is not better."""
        self.waited += 1
        before = -math.inf if self.best_score is None else self.best_score
        if val is not None and val.score > before:
            self.best_score, self.waited = val.score, 0

    @property
    def is_over(self) -> bool:
        return self.epochs is not None and self.waited >= self.epochs

    def state(self) -> PatienceState:
        return PatienceState(self.best_score, self.waited)

    def restore(self, state: PatienceState) -> None:
        self.best_score, self.waited = state.best_score, state.waited
