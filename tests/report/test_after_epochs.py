import pytest
import torch
from torch import nn

from vit_train.engine.metrics import Evaluation
from vit_train.engine.trainer import TrainLog
from vit_train.training.checkpoints import TimeShare
from vit_train.training.pictures import SHARE, Pictures


def test_it_shows_the_first_and_the_last_epoch_and_others_if_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Showing takes a second, and the second epoch ends too soon to be worth one."""
    now, shown = 100.0, []
    monkeypatch.setattr("time.monotonic", lambda: now)

    class Trainer:
        model, eval_model = nn.Linear(1, 1), nn.Linear(1, 1)
        finished = False

    class Shown(Pictures):
        def __init__(self) -> None:
            self.time = TimeShare(SHARE)

        def show(self, model: nn.Module, val: Evaluation | None, step: int) -> None:
            nonlocal now
            now += 1
            shown.append((model.weight.item(), val.loss, step))

    callback = Shown()
    for epoch, minutes in ((1, 1), (2, 1), (3, 4), (4, 1)):
        now += 60 * minutes
        Trainer.finished = epoch == 4
        with torch.no_grad():
            Trainer.eval_model.weight.fill_(epoch)
            Trainer.model.weight.fill_(7)
        log = TrainLog(epoch, 10 * epoch, 0, {}, 0.1, 1)
        callback.on_epoch(Trainer, log, Evaluation(count=1, loss=epoch / 2))
    assert shown == [(1, 0.5, 10), (3, 1.5, 30), (4, 2, 40)]
