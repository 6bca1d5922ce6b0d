"""NaN or infinity in the loss or its gradient: stop with a message, or skip the step."""

from collections.abc import Callable

import torch
from torch import Tensor

from vit_train.engine.config import LoopConfig

ADVICE = "Try a lower optim.lr, a longer optim.warmup_epochs or a smaller optim.clip_norm"


class NonFinite(ArithmeticError):
    """The loss or its gradient is NaN or infinity: the weights are lost, the checkpoint is not."""


class NonFiniteGuard:
    """Decides whether a step with such a loss is taken, as `train.on_nonfinite` says.

    "stop" takes the step and keeps the number of the first bad one on the device, so that the loop
    never waits for it; `require_finite` raises NonFinite when somebody reads the loss. "skip" waits
    for the device at every step, and leaves out at most `train.max_skips` of them. `notify` is
    called with the number of a bad step first.
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
        """Return whether to take the step, counted from 1; `finite` () says if its loss is."""
        if self.config.on_nonfinite == "stop":
            first = ~finite & (self.first_bad_step == 0)
            self.first_bad_step = torch.where(first, step, self.first_bad_step)
            return True
        if finite:
            return True
        self.skipped += 1
        self.notify(step)
        if self.skipped > self.config.max_skips:
            raise NonFinite(f"{self.skipped} steps had no finite loss or gradient. {ADVICE}")
        return False

    def require_finite(self) -> None:
        """Raise NonFinite, naming the first bad step, if there was one. Waits for the device."""
        step = int(self.first_bad_step)
        if step:
            self.notify(step)
            epoch, batch = epoch_and_batch(step, self.steps_per_epoch)
            raise NonFinite(
                f"the loss or its gradient was no finite number at step {step} (batch {batch + 1} "
                f"of epoch {epoch + 1}). {ADVICE}"
            )


def epoch_and_batch(step: int, steps_per_epoch: int) -> tuple[int, int]:
    """Return the epoch and the batch in it, both from 0, of a step, counted from 1."""
    return divmod(step - 1, steps_per_epoch)
