import io
import logging
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

from vit_train.engine.metrics import Answers, Classification, Evaluation
from vit_train.engine.trainer import TrainLog
from vit_train.evaluation.predict import terminal_line
from vit_train.figures.measures import class_table, result_line
from vit_train.model.build import parameter_breakdown
from vit_train.runs.trained import Prediction
from vit_train.training.terminal import Terminal

RESULT = Classification(
    count=2000, loss=1.23456, acc=0.5, top5=0.875, balanced_acc=0.75,
    per_class_correct=[300, 700, 0], per_class_count=[1200, 800, 0],
    answers=Answers(np.array([0, 0, 1, 1]), np.eye(3)[[0, 1, 1, 1]]),
)  # fmt: skip


def test_a_result_is_said_with_its_interval() -> None:
    assert result_line(RESULT) == (
        "top-1 50.00% (95 % interval 47.81% to 52.19%)  balanced 75.00%  loss 1.2346  "
        "on 2,000 images"
    )
    ten = Classification.of(Answers(np.arange(10), np.eye(10)))
    assert "top-5 100.00%  loss" in result_line(ten)
    assert result_line(Evaluation(count=2000, loss=1.23456)) == "loss 1.2346 on 2,000 images"


def test_each_class_has_its_own_accuracy() -> None:
    lines = class_table(RESULT, ["cat", "snake", "none"]).splitlines()
    assert [line.split() for line in lines] == [
        ["cat", "25.00%", 5 * "█", "300", "of", "1200"],
        ["snake", "87.50%", 18 * "█", "700", "of", "800"],
        ["none", "no", "images"],
    ]
    assert len({line.index("%") for line in lines[:2]}) == 1


def test_a_class_with_an_endless_name_takes_no_more_than_its_line() -> None:
    """The longest name is as wide as all rows."""
    names = ["cat", "x" * 1_000_000]
    table = class_table(Classification.of(Answers(np.arange(2), np.eye(2))), names)
    assert len(table) < 300 and "cat" in table and "xxx…" in table
    said = Prediction(names[1], 1.0, [(names[1], 1.0)])
    assert len(terminal_line(Path("a.png"), said, 10)) < 100


def test_an_epoch_is_a_line_under_the_names_of_its_columns(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says how long the rest takes, at the speed since this start of the run."""
    clock = iter([0.0, 300.0, 600.0])
    monkeypatch.setattr("vit_train.training.terminal.time.perf_counter", lambda: next(clock))
    log = TrainLog(2, 20, 1344, {"loss": 1.5, "acc": 0.25}, 2e-3, 640.4)
    trainer = SimpleNamespace(step=10, epoch=1, batch=0, last_epoch=3, train_loader=range(10))
    terminal = Terminal()
    with caplog.at_level(logging.INFO), terminal.shown(trainer):
        terminal.on_epoch(trainer, log, RESULT)
        terminal.on_epoch(trainer, replace(log, epoch=3, step=30), None)
    assert [record.getMessage() for record in caplog.records] == [
        "      epoch train loss  train acc   val loss    val acc         lr   images/s       left",
        "        2/3     1.5000     0.2500     1.2346     0.5000    2.0e-03        640      05:00",
        "        3/3     1.5000     0.2500    2.0e-03        640      00:00",
    ]


def test_the_bar_begins_where_the_run_does(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", screen)
    trainer = SimpleNamespace(step=17, epoch=1, batch=7, last_epoch=3, train_loader=range(10))
    with Terminal().shown(trainer):
        assert "epoch 2/3:  70%" in screen.getvalue()


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
