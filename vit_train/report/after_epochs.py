"""Results that are drawn after some epochs, as often as there is time for."""

from collections.abc import Callable

from torch import nn

from vit_train.engine.callbacks import Callback, TrainLog
from vit_train.engine.metrics import Evaluation
from vit_train.engine.time_share import TimeShare
from vit_train.engine.trainer import Trainer

# Of the time that what is shown may take.
SHARE = 0.005
# Shows results of a model, such as those of its validation, after a step.
Show = Callable[[nn.Module, Evaluation | None, int], None]


class AfterEpochs(Callback):
    """Shows results after the first and the last epoch, and after others in SHARE of the time."""

    def __init__(self, show: Show) -> None:
        self.show, self.time = show, TimeShare(SHARE)

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        if self.time.is_due or trainer.finished:
            model = trainer.eval_model
            was_training = model.training
            with self.time.spent():
                self.show(model.eval(), val, log.step)
            model.train(was_training)
