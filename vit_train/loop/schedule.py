"""The learning-rate schedule, the choice of the best epoch, and the handling of NaN."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from vit_train.config.fields import Reported, chosen
from vit_train.config.training import LoopConfig, OptimConfig
from vit_train.loop.metrics import Evaluation, score
from vit_train.loop.state import Best, Start

FRESH = Start()
# The schedules by name. Each maps the completed fraction of the steps after the warm-up to the
# remaining fraction of the way from the peak rate to min_lr. To add one, add a line.
SCHEDULES: dict[str, Callable[[float], float]] = {
    # Loshchilov & Hutter 2017, arXiv:1608.03983
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "linear": lambda done: 1 - done,
    # Warm-up, stable, decay: constant, then down in the last fifth (Hägele et al. 2024,
    # arXiv:2405.18392)
    "wsd": lambda done: min(1.0, 1 - math.sqrt(max(0.0, 5 * done - 4))),
    "constant": lambda done: 1.0,
    # Divided by 10 after half and three quarters of the steps, as by He et al. 2016 on CIFAR-10
    "step": lambda done: 0.1 ** ((done >= 0.5) + (done >= 0.75)),
}


def learning_rate(
    step: int, config: OptimConfig, steps_per_epoch: int, epochs: int, start: Start = FRESH
) -> float:
    """Return the learning rate of a step, counted from 0.

    The rate changes linearly during the warm-up, and then follows the config's schedule. The
    warm-up lasts `warmup_epochs`, but at most half of the steps. If the run extends another run,
    the warm-up starts at the last learning rate of that other run instead of 0 (Ibrahim et al.
    2024, arXiv:2403.08763). With `lr_every=epoch`, the rate changes once per epoch. Raise
    ValueError for an unknown schedule.
    """
    peak = config.peak_lr
    step -= start.step
    if config.lr_every == "epoch":
        step = step // steps_per_epoch
        steps_per_epoch = 1
    total = steps_per_epoch * epochs
    warmup = min(round(config.warmup_epochs * steps_per_epoch), total // 2)
    if step < warmup:
        return start.lr + (peak - start.lr) * (step + 1) / warmup
    done = min(1.0, (step - warmup) / (total - warmup))
    left = chosen(SCHEDULES, "optim.schedule", config.schedule)(done)
    return config.min_lr + (peak - config.min_lr) * left


def better(best: Best | None, epoch: int, val: Evaluation, best_by: str) -> Best | None:
    """Return the better of `best` and this epoch: by score or, for equal scores, by loss.

    The result is None if `best` is None and this epoch's score is NaN.
    """
    found = Best(epoch, score(val.values, best_by), val.values)
    before = (-math.inf, -math.inf) if best is None else (best.score, -best.values["loss"])
    return found if (found.score, -val.loss) > before else best


# With train.on_nonfinite=skip, a run stops after more skipped steps than this.
MOST_SKIPS = 10
ADVICE = "Try a lower optim.lr, a longer optim.warmup_epochs or a smaller optim.clip_norm"


class NonFinite(Reported, ArithmeticError):
    """The loss or its gradient is NaN or infinite, so training cannot continue."""

    exit_status = 3


class NonFiniteGuard:
    """Records steps with a NaN or infinite loss or gradient, and applies `train.on_nonfinite`.

    The records stay on the device, so that the loop need not wait for the device. `check` reads the
    records with each log and after each epoch. For each non-finite step, `check` calls `notify`
    with the number of the step. With on_nonfinite=stop, `check` then raises NonFinite. With
    on_nonfinite=skip, `check` raises NonFinite only after more than MOST_SKIPS such steps.
    In both cases, a non-finite step changes no weights.
    """

    def __init__(
        self,
        config: LoopConfig,
        steps_per_epoch: int,
        device: torch.device,
        notify: Callable[[int], None],
    ) -> None:
        self.config = config
        self.notify = notify
        # One flag for each step since the last reading: step n is at (n − 1) mod the number of
        # flags.
        self.bad = torch.zeros(steps_per_epoch, dtype=torch.bool, device=device)
        self.read_until = self.skipped = 0

    def note(self, step: Tensor, finite: Tensor) -> None:
        """Record on the device whether a step was `finite`.

        Both arguments are scalar tensors; steps count from 1.
        """
        index = (step - 1).long().remainder(len(self.bad))
        self.bad.index_copy_(0, index.view(1), ~finite.view(1))

    def check(self, step: int) -> None:
        """Report each non-finite step recorded up to `step`; raise NonFinite if the run must end.

        Wait for the device. Call this at least once per epoch, because the steps of the next epoch
        overwrite the records.
        """
        bad = self.bad.tolist()
        steps = [
            each for each in range(self.read_until + 1, step + 1) if bad[(each - 1) % len(bad)]
        ]
        self.read_until = step
        for each in steps:
            self.notify(each)
            if self.config.on_nonfinite == "stop":
                epoch, batch = divmod(each - 1, len(bad))
                raise NonFinite(
                    f"the loss or its gradient was NaN or infinite at step {each} (batch "
                    f"{batch + 1} of epoch {epoch + 1}). {ADVICE}"
                )
            self.skipped += 1
            if self.skipped > MOST_SKIPS:
                raise NonFinite(
                    f"{self.skipped} steps had a NaN or infinite loss or gradient. {ADVICE}"
                )
