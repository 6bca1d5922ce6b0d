"""The interface through which the training loop reports events to its callbacks.

Callbacks depend on the loop; the loop does not depend on any particular callback.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vit_train.engine.metrics import Evaluation

if TYPE_CHECKING:
    from vit_train.engine.trainer import Trainer


@dataclass(frozen=True)
class TrainLog:
    """Averages over the images since the previous log or, at an epoch's end, over the epoch."""

    epoch: int
    step: int
    images_seen: int
    # The mean of each of the objective's measures, by name.
    values: dict[str, float]
    lr: float
    images_per_s: float


class Callback:
    """Base class of callbacks. Every method is optional and does nothing by default."""

    def on_log(self, trainer: "Trainer", log: TrainLog) -> None:
        """Handle the averages that are logged every `log_every` steps."""

    def on_step(self, trainer: "Trainer") -> None:
        """Handle the end of every optimizer step.

        There are no averages here, because reading them would wait for the device.
        """

    def on_epoch(self, trainer: "Trainer", log: TrainLog, val: Evaluation | None) -> None:
        """Handle the end of each epoch, after its validation."""

    def on_stop(self, trainer: "Trainer") -> None:
        """Handle, once, the end of a run that was asked to stop early."""

    def on_nonfinite(self, trainer: "Trainer", step: int) -> None:
        """Handle NaN or infinity in the loss or gradient of this step, once it is detected."""
