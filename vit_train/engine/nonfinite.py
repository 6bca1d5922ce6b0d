"""Handling of NaN or infinity in the loss or its gradient: stop the run, or skip the step."""

from collections.abc import Callable

import torch
from torch import Tensor

from vit_train.engine.config import LoopConfig

ADVICE = "Try a lower optim.lr, a longer optim.warmup_epochs or a smaller optim.clip_norm"


class NonFinite(ArithmeticError):
    """The loss or its gradient is NaN or infinity: the weights are lost, the checkpoint is kept."""


class NonFiniteGuard:
    """Decides whether to take a step with NaN or infinity, according to `train.on_nonfinite`.

    "stop" takes the step and keeps the number of the first bad step on the device, so that the loop
    never waits for the device; `require_finite` raises NonFinite when the loss is read.
    "skip" waits for the device at every step, and raises NonFinite after more than
    `train.max_skips` skipped steps. Either way, `notify` is called first, with the number of the
    bad step.
    """

    def __init__(
        self,
        config: LoopConfig,
        steps_per_epoch: int,
        device: torch.device,
        notify: Callable[[int], None],
    ) -> None:
        self.config, self.steps_per_epoch, self.notify = config, steps_per_epoch, notify
        self.first_bad_step = torch.zeros((), dtype=torch.long, device=device)  # 0 for none
        self.skipped = 0

    def allows(self, step: int, finite: Tensor) -> bool:
        """Return whether to take this step, counted from 1.

        `finite` () says, on the device, whether its loss and gradient are finite.
        """
        if self.config.on_nonfinite == "stop":
            first = ~finite & (self.first_bad_step == 0)
            self.first_bad_step = torch.where(first, step, self.first_bad_step)
            return True
        if finite:
            return True
        self.skipped += 1
        self.notify(step)
        if self.skipped > self.config.max_skips:
            raise NonFinite(
                f"{self.skipped} steps had NaN or infinity as loss or gradient. {ADVICE}"
            )
        return False

    def require_finite(self) -> None:
        """Raise NonFinite, naming the first bad step, if there was one. Waits for the device."""
        step = int(self.first_bad_step)
        if step:
            self.notify(step)
            epoch, batch = epoch_and_batch(step, self.steps_per_epoch)
            raise NonFinite(
                f"the loss or its gradient was NaN or infinity at step {step} (batch {batch + 1} "
                f"of epoch {epoch + 1}). {ADVICE}"
            )


def epoch_and_batch(step: int, steps_per_epoch: int) -> tuple[int, int]:
    """Return the epoch and the batch in it, both counted from 0, of a step counted from 1."""
    return divmod(step - 1, steps_per_epoch)
