import io
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from vit_train.engine.metrics import Classification, Evaluation, Predictions
from vit_train.engine.trainer import TrainLog
from vit_train.evaluation.predict import terminal_line
from vit_train.figures.measures import class_table, result_line
from vit_train.model.build import parameter_breakdown
from vit_train.runs.trained import Prediction
from vit_train.training.terminal import Terminal

RESULT = Classification(
    count=2000, loss=1.23456, acc=0.5, top5=0.875, balanced_acc=0.75,
    per_class_correct=[300, 700, 0], per_class_count=[1200, 800, 0],
    answers=Predictions(np.array([0, 0, 1, 1]), np.eye(3)[[0, 1, 1, 1]]),
)  # fmt: skip


def test_a_result_is_said_with_its_interval() -> None:
    assert result_line(RESULT) == (
        "top-1 50.00% (95 % interval 47.81% to 52.19%)  balanced 75.00%  loss 1.2346  "
        "on 2,000 images"
    )
    ten = Classification.of(Predictions(np.arange(10), np.eye(10)))
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
    table = class_table(Classification.of(Predictions(np.arange(2), np.eye(2))), names)
    assert len(table) < 300 and "cat" in table and "xxx…" in table
    said = Prediction(names[1], 1.0, [(names[1], 1.0)])
    assert len(terminal_line(Path("a.png"), said, 10)) < 100


def test_an_epoch_is_a_line_under_the_names_of_its_columns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = TrainLog(3, 42, 1344, {"loss": 1.5, "acc": 0.25}, 2e-3, 640.4)
    with caplog.at_level(logging.INFO):
        for result in (RESULT, None):
            terminal = Terminal(steps_per_epoch=14, epochs=3)
            terminal.on_epoch(None, log, result)
        terminal.on_epoch(None, log, None)
    assert [record.getMessage() for record in caplog.records] == [
        "epoch    train loss     acc    val loss     acc       lr  images/s    left",
        "   3/3        1.500  25.00%       1.235  50.00%  2.0e-03       640     0 s",
        "epoch    train loss     acc       lr  images/s    left",
        "   3/3        1.500  25.00%  2.0e-03       640     0 s",
        "   3/3        1.500  25.00%  2.0e-03       640     0 s",
    ]


def test_nothing_is_drawn_in_front_of_the_first_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", screen)
    terminal = Terminal(steps_per_epoch=14, epochs=3)
    assert screen.getvalue() == ""
    with terminal:
        assert "epoch 1/3:   0%" in screen.getvalue()


@pytest.mark.parametrize("step, left", [(0, "4 min"), (8, "20 min")])
def test_the_first_log_says_how_long_the_run_will_take(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, step: int, left: str
) -> None:
    clock = iter([0.0, 30.0, 31.0])
    monkeypatch.setattr("vit_train.training.terminal.time.perf_counter", lambda: next(clock))
    # 10 of 90 steps have been made, all of them or two, in half a minute.
    log = TrainLog(1, 10, 320, {"loss": 1.5}, 2e-3, 10.4)
    terminal = Terminal(steps_per_epoch=30, epochs=3, step=step)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            terminal.on_log(None, log)
    assert [r.getMessage() for r in caplog.records] == [f"about {left} left, at 10 images/s"]


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
