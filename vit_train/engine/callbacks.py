"""How the loop tells others what happened: they know it, it does not know them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vit_train.engine.metrics import Evaluation

if TYPE_CHECKING:
    from vit_train.engine.trainer import Trainer


@dataclass(frozen=True)
class TrainLog:
    """Averages over the images since the previous log (or, at an epoch's end, the epoch)."""

    epoch: int
    step: int
    images_seen: int
    # By the names of the objective's measures.
    values: dict[str, float]
    lr: float
    images_per_s: float


class Callback:
    """Hears what happens; every method may be left out."""

    def on_log(self, trainer: "Trainer", log: TrainLog) -> None:
        """Every `log_every` steps."""

    def on_step(self, trainer: "Trainer") -> None:
        """After every optimizer step, without figures: reading them would wait for the device."""

    def on_epoch(self, trainer: "Trainer", log: TrainLog, val: Evaluation | None) -> None:
        """After each epoch and its validation."""

    def on_stop(self, trainer: "Trainer") -> None:
        """Once, when a run was asked to stop before its end."""

    def on_nonfinite(self, trainer: "Trainer", step: int) -> None:
        """When this step's loss or gradient was no number."""
