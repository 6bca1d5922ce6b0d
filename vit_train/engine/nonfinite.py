"""Handling of NaN or infinity in the loss or its gradient: stop the run, or skip the step."""

from collections.abc import Callable

import torch
from torch import Tensor

from vit_train.engine.config import LoopConfig

ADVICE = "Try a lower optim.lr, a longer optim.warmup_epochs or a smaller optim.clip_norm"


class NonFinite(ArithmeticError):
    """The loss or its gradient is NaN or infinity: training cannot go on from there."""


class NonFiniteGuard:
    """Notes which steps had NaN or infinity, and acts as `train.on_nonfinite` says.

    The notes stay on the device, so that the loop does not wait for it, and are read every
    `train.log_every` steps and after each epoch. "stop" then raises NonFinite, "skip" does so after
    more than `train.max_skips` of them. In both modes a bad step changes no weights, and `notify`
    is called first, with its number.
    """

    def __init__(
        self,
        config: LoopConfig,
        steps_per_epoch: int,
        device: torch.device,
        notify: Callable[[int], None],
    ) -> None:
        self.config, self.steps_per_epoch, self.notify = config, steps_per_epoch, notify
        # One note for each step since the last reading: step n is at (n − 1) mod their number.
        notes = min(config.log_every, steps_per_epoch)
        self.bad = torch.zeros(notes, dtype=torch.bool, device=device)
        self.read_until = self.skipped = 0

    def note(self, step: Tensor, finite: Tensor) -> None:
        """Note on the device whether a step, () and counted from 1, is finite, ()."""
        place = (step - 1).long().remainder(len(self.bad))
        self.bad.index_copy_(0, place.view(1), ~finite.view(1))

    def check(self, step: int) -> None:
        """Act on what was noted up to this step; raise NonFinite to end the run.

        This waits for the device, and must happen at least every `log_every` steps and once an
        epoch.
        """
        bad = self.bad.tolist()
        steps = [
            each for each in range(self.read_until + 1, step + 1) if bad[(each - 1) % len(bad)]
        ]
        self.read_until = step
        for each in steps:
            self.notify(each)
            if self.config.on_nonfinite == "stop":
                epoch, batch = divmod(each - 1, self.steps_per_epoch)
                raise NonFinite(
                    f"the loss or its gradient was NaN or infinity at step {each} (batch "
                    f"{batch + 1} of epoch {epoch + 1}). {ADVICE}"
                )
            self.skipped += 1
            if self.skipped > self.config.max_skips:
                raise NonFinite(
                    f"{self.skipped} steps had NaN or infinity as loss or gradient. {ADVICE}"
                )
