import logging

import numpy as np
import pytest
from torch import nn

from vit_train.engine.answers import Answers
from vit_train.engine.callbacks import TrainLog
from vit_train.engine.metrics import Classification, Evaluation
from vit_train.report.terminal import Terminal, class_table, parameter_breakdown, result_line

RESULT = Classification(
    count=2000, loss=1.23456, acc=0.5, top5=0.875,
    per_class_correct=[300, 700, 0], per_class_count=[1200, 800, 0],
    answers=Answers(np.empty(0, int), np.empty((0, 3))),
)  # fmt: skip


def test_a_result_is_said_with_its_interval() -> None:
    assert result_line(RESULT) == (
        "top-1 50.00% (95 % interval 47.81% to 52.19%)  top-5 87.50%  loss 1.2346  on 2,000 images"
    )
    assert result_line(Evaluation(count=2000, loss=1.23456)) == "loss 1.2346 on 2,000 images"


def test_each_class_has_its_own_accuracy() -> None:
    lines = class_table(RESULT, ["cat", "snake", "none"]).splitlines()
    assert [line.split() for line in lines] == [
        ["cat", "25.00%", 5 * "█", "300", "of", "1200"],
        ["snake", "87.50%", 18 * "█", "700", "of", "800"],
        ["none", "0.00%", "0", "of", "0"],
    ]
    assert len({line.index("%") for line in lines}) == 1


def test_an_epoch_is_a_line_with_training_and_validation(caplog: pytest.LogCaptureFixture) -> None:
    log = TrainLog(3, 42, 1344, {"loss": 1.5, "acc": 0.25}, 2e-3, 640.4)
    terminal = Terminal(steps_per_epoch=14, epochs=10)
    with caplog.at_level(logging.INFO):
        terminal.on_epoch(None, log, RESULT)
        terminal.on_epoch(None, log, None)
    assert [record.getMessage() for record in caplog.records] == [
        "epoch   3/10  │ train loss 1.500 acc 25.00%  │ val loss 1.235 acc 50.00%"
        "  │ lr 2.0e-03  640 images/s",
        "epoch   3/10  │ train loss 1.500 acc 25.00%  │ lr 2.0e-03  640 images/s",
    ]


def test_parameters_are_counted_where_they_are() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(nn.init.zeros_(nn.Linear(3, 1).weight))
            self.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
            self.mixed = nn.ModuleList([nn.Linear(2, 2), nn.Linear(1, 1)])
            self.nothing, self.head = nn.Identity(), nn.Linear(999, 1)

    assert parameter_breakdown(Model()) == (
        "1,029 parameters = 3 token + 3 × 6 blocks + 8 mixed + 1,000 head"
    )
