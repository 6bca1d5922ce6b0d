"""What a run prints and writes while it trains: its callbacks."""

import contextlib
import io
import logging
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from conftest import SMALL, Run, csv_rows
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.plugins.hparams.backend_context import _sort_and_reduce_to_hparams_limit
from torch import nn

from vit_train.base.writing import write_from
from vit_train.evaluate.measuring import class_table
from vit_train.evaluate.predict import terminal_line
from vit_train.figures.measures import result_line
from vit_train.loop.metrics import Classification, Evaluation, Predictions
from vit_train.loop.trainer import TrainLog
from vit_train.model.build import parameter_breakdown
from vit_train.run import reports
from vit_train.run.reports import MetricsCsv, Pictures, TensorBoard
from vit_train.run.terminal import Terminal
from vit_train.trained.model import Prediction

RESULT = Classification(
    count=2000, loss=1.23456, acc=0.5, top5=0.875, balanced_acc=0.75,
    per_class_correct=[300, 700, 0], per_class_count=[1200, 800, 0],
    predictions=Predictions(np.array([0, 0, 1, 1]), np.eye(3)[[0, 1, 1, 1]]),
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
    shares = {"cat": (0.25, 1200), "snake": (0.875, 800), "none": (0.0, 0)}
    rows = [{"name": name, "recall": a, "support": b} for name, (a, b) in shares.items()]
    lines = [line.split() for line in class_table(rows).splitlines()]
    counts = [
        ["cat", "25.00%", 5 * "█", "300", "of", "1200"],
        ["snake", "87.50%", 18 * "█", "700", "of", "800"],
    ]
    assert lines == [*counts, ["none", "no", "images"]]


def test_a_class_with_an_endless_name_takes_no_more_than_its_line() -> None:
    """The longest name is as wide as all rows."""
    names = ["cat", "x" * 1_000_000]
    table = class_table([{"name": name, "recall": 1.0, "support": 1} for name in names])
    assert len(table) < 300 and "cat" in table and "xxx…" in table
    said = Prediction(names[1], 1.0, [(names[1], 1.0)])
    assert len(terminal_line(Path("a.png"), said, 10)) < 100


def test_an_epoch_is_a_line_under_the_names_of_its_columns(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says how long the rest takes, at the speed since this start of the run."""
    clock = iter([0.0, 300.0, 600.0])
    monkeypatch.setattr("vit_train.run.terminal.time.perf_counter", lambda: next(clock))
    line = TrainLog(2, 20, 1344, {"loss": 1.5, "acc": 0.25}, 2e-3, 640.4)
    trainer = SimpleNamespace(step=10, epoch=1, batch=0, last_epoch=3, train_loader=range(10))
    terminal = Terminal()
    with caplog.at_level(logging.INFO), terminal.shown(trainer):
        terminal.on_epoch(trainer, line, RESULT)
        terminal.on_epoch(trainer, replace(line, epoch=3, step=30), None)
    assert [record.getMessage() for record in caplog.records] == [
        "      epoch train loss  train acc   val loss    val acc         lr   images/s       left",
        "        2/3     1.5000     25.00%     1.2346     50.00%    2.0e-03        640      05:00",
        "        3/3     1.5000     25.00%    2.0e-03        640      00:00",
    ]


@pytest.mark.parametrize("place", ["terminal", "notebook", "silent notebook", "file"])
def test_the_bar_begins_where_the_run_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: place == "terminal", raising=False)
    monkeypatch.setattr(sys, "stderr", screen)
    if "notebook" in place:
        monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    trainer = SimpleNamespace(step=17, epoch=1, batch=7, last_epoch=3, train_loader=range(10))
    level = logging.WARNING if "silent" in place else logging.INFO
    with caplog.at_level(level), Terminal().shown(trainer):
        assert ("epoch 2/3:  70%" in screen.getvalue()) == (place in ("terminal", "notebook"))


def test_parameters_are_counted_where_they_are() -> None:
    model = nn.Module()
    model.token = nn.Parameter(torch.zeros(1, 3))
    model.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
    model.mixed = nn.ModuleList([nn.Linear(2, 2), nn.Linear(1, 1)])
    model.nothing, model.head = nn.Identity(), nn.Linear(999, 1)
    assert parameter_breakdown(model) == (
        "1,029 parameters = 3 token + 3 × 6 blocks + 8 mixed + 1,000 head"
    )


def test_it_shows_the_first_and_the_last_epoch_and_others_if_there_is_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Showing takes a second, and the second epoch ends too soon to be worth one."""
    now, shown, models = 100.0, [], [nn.Identity() for _ in range(5)]
    monkeypatch.setattr("time.monotonic", lambda: now)

    def show(pictures: Pictures, model: nn.Module, val: Evaluation, step: int) -> None:
        nonlocal now
        now += 1
        shown.append((models.index(model), val.loss, step))

    monkeypatch.setattr(Pictures, "show", show)
    setup = SimpleNamespace(task=SimpleNamespace(columns=()), model=None)
    pictures = Pictures(setup, Mock(), Path("pictures.png"))
    for epoch, minutes in ((1, 1), (2, 1), (3, 4), (4, 1)):
        now += 60 * minutes
        trainer = SimpleNamespace(finished=epoch == 4, model=models[0], eval_model=models[epoch])
        pictures.on_epoch(trainer, log(epoch), Evaluation(count=1, loss=epoch / 2))
    assert shown == [(1, 0.5, 10), (3, 1.5, 30), (4, 2, 40)]


def log(epoch: int) -> TrainLog:
    return TrainLog(epoch, 10 * epoch, 320 * epoch, {"loss": 0.5, "acc": 0.25}, 1e-3, 64.04)


def rows(path: Path) -> list[dict[str, float]]:
    return [{k: float(v) for k, v in row.items()} for row in csv_rows(path)]


TRAINER = SimpleNamespace(seconds=7.04)


def test_a_row_says_what_happened_in_its_epoch(tmp_path: Path) -> None:
    table = MetricsCsv(tmp_path / "metrics.csv")
    table.on_epoch(TRAINER, log(1), Evaluation(count=20, loss=2.5))
    assert not table.path.exists()
    table.flush()
    assert table.path.stat().st_size == table.length
    (row,) = rows(tmp_path / "metrics.csv")
    assert row == {
        "epoch": 1, "step": 10, "images_seen": 320, "lr": 1e-3, "train_loss": 0.5,
        "train_acc": 0.25, "val_loss": 2.5, "images_per_s": 64.0, "seconds": 7.0,
    }  # fmt: skip


HEADER = "epoch,images_seen,train_loss\n"


@pytest.mark.parametrize(
    "text",
    [f"{HEADER}1,9,{'0' * 140_000}\n", f"{HEADER}1,9\n", f"{HEADER}1,9,x\n", f"{HEADER}1,9,2,3\n"],
    ids=range(4),
)
def test_a_table_that_cannot_go_on_is_refused_before_training(tmp_path: Path, text: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(text.encode())
    with pytest.raises(ValueError, match=r"metrics\.csv is damaged"):
        MetricsCsv(path).open()


def test_a_table_that_another_version_began_keeps_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,images_seen,val_loss,val_gone\n1,2,3.0,4.0\n", encoding="utf-8")
    table = MetricsCsv(path)
    table.open()
    table.on_epoch(TRAINER, log(2), Evaluation(count=20, loss=2.5))
    table.flush()
    first, second = rows(path)
    assert first.keys() == second.keys() and second["val_loss"] == 2.5 and second["epoch"] == 2
    assert math.isnan(second["val_gone"])


LOG = TrainLog(3, 42, 1344, {"loss": 1.5, "acc": 0.25}, 1e-3, 640.0)
ANSWERS = Predictions(np.zeros(8, int), np.eye(2)[[0, 0, 0, 0, 1, 1, 1, 1]] * 100)
EVALUATED = Classification(8, 0.75, 0.5, 0.875, 0.5, [4, 0], [8, 0], ANSWERS)


@pytest.fixture
def board(tmp_path: Path) -> TensorBoard:
    return TensorBoard(tmp_path)


TRAINED = SimpleNamespace(model=nn.LayerNorm(1, bias=False), gradient_norm=torch.tensor(3.0))


def written(board: TensorBoard) -> EventAccumulator:
    """What is read from the file after it was written."""
    board.flush()
    return EventAccumulator(str(board.path), size_guidance={"scalars": 0}).Reload()


def points(events: EventAccumulator) -> dict[str, list[tuple[int, float]]]:
    tags = events.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}


def test_every_number_stands_at_its_step_under_its_name(board: TensorBoard) -> None:
    board.on_log(TRAINED, LOG)
    board.on_epoch(TRAINED, LOG, EVALUATED)
    board.close({"model": {"depth": 2}}, {"test/acc": 0.5}, [])
    expected = {
        "loss/train": (42, 1.5), "acc/train": (42, 0.25), "train/lr": (42, 1e-3),
        "train/images_per_s": (42, 640), "train/images_seen": (42, 1344),
        "train/gradient_norm": (42, 3), "weight norm/weight": (42, 1),
        "loss/val": (42, 0.75), "acc/val": (42, 0.5), "val/top5": (42, 0.875),
        "val/balanced_acc": (42, 0.5),
        "val/ece": (42, 0.5),
        "val/selective_acc": (42, 0.5),
        "test/acc": (0, 0.5),
    }  # fmt: skip
    assert points(written(board)) == {
        tag: [(step, pytest.approx(value))] for tag, (step, value) in expected.items()
    }


def test_the_norms_of_weights_are_those_of_each_layer(board: TensorBoard) -> None:
    model = nn.Module()
    model.embed = nn.Linear(3, 2)
    model.blocks = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(2))
    model.frozen = nn.Linear(2, 2).requires_grad_(False)
    parts = {"embed": model.embed, "blocks.0": model.blocks[0], "blocks.1": model.blocks[1]}
    expected = {}
    for name, part in parts.items():
        norm = nn.utils.parameters_to_vector(part.parameters()).norm().item()
        expected[f"weight norm/{name}"] = [(42, pytest.approx(norm))]
    board.on_log(SimpleNamespace(model=model, gradient_norm=0.0), LOG)
    board.close({}, {}, [])
    found = points(written(board))
    assert {tag: found[tag] for tag in found if "weight norm" in tag} == expected


def test_the_settings_that_were_chosen_come_first(board: TensorBoard) -> None:
    """As TensorBoard itself sorts them, and among the final results alone."""
    board.scalar("loss/train", 2.0, 1)
    chosen = ["e", "b.d", "resume"]
    board.close({"a": 1, "b": {"c": 2, "d": 3}, "e": 4}, {"test/acc": 1.0}, chosen)
    content = written(board).SummaryMetadata("_hparams_/experiment").plugin_data.content
    experiment = plugin_data_pb2.HParamsPluginData.FromString(content).experiment
    _sort_and_reduce_to_hparams_limit(experiment)
    assert [info.name for info in experiment.hparam_infos] == ["b.d", "e", "a", "b.c"]
    assert [info.name.tag for info in experiment.metric_infos] == ["test/acc"]


def test_a_failure_of_the_disk_loses_and_repeats_nothing(
    board: TensorBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if it happens in the middle of a record."""

    def half(path: Path, start: int, content: bytes) -> None:
        write_from(path, start, content[: len(content) // 2])
        raise OSError("No space left on device")

    for step in range(1, 7):
        board.scalar("loss/train", float(step), step)
        with monkeypatch.context() as patch:
            if step not in (3, 6):
                patch.setattr(reports, "write_from", half)
            with contextlib.suppress(OSError):
                board.flush()
    assert board.path.stat().st_size == board.length
    assert points(written(board))["loss/train"] == [(step, step) for step in range(1, 7)]


class FakeTracker:
    """A module with the functions of Weights & Biases and of MLflow, which notes every call."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        self.calls: list[tuple[str, Any, Any]] = []
        self.init = self.start_run = self.noting("start")
        self.log = self.noting("log")
        self.finish, self.end_run = self.noting("end"), self.noting("end")
        self.log_metrics, self.log_params = self.log, self.noting("params")
        self.set_experiment = self.noting("experiment")

    def search_runs(self, filter_string: str, **arguments: object) -> list[SimpleNamespace]:
        begun = [str(named["tags"]) for name, _, named in self.calls if name == "start"]
        wanted = filter_string.partition("= ")[2]  # 'VALUE'
        return [SimpleNamespace(info=SimpleNamespace(run_id="7"))] if wanted in str(begun) else []

    @property
    def records(self) -> list[Any]:
        """What each start tells the tracker to find the same record by."""
        key = {"trackio": "name", "wandb": "id", "mlflow": "tags"}[self.__name__]
        return [str(named[key]) for name, _, named in self.calls if name == "start"]

    def noting(self, name: str) -> Callable[..., "FakeTracker"]:
        def note(*values: Any, **named: Any) -> "FakeTracker":
            self.calls.append((name, values, named))
            return self

        return note


def test_a_tracker_gets_each_point_once_though_the_run_stops(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes = {name: FakeTracker(name) for name in ("trackio", "wandb", "mlflow")}
    settings = [*SMALL, f"trackers=[{','.join(fakes)}]", "hydra.run.dir=some/run"]
    for name, fake in fakes.items():
        run.fails(f"pip install {name}", "vit-train", *settings, f"trackers=[{name}]")
        monkeypatch.setitem(sys.modules, name, fake)
    assert not Path("some/run").exists()
    run.succeeds("vit-train", *settings, "train.max_minutes=1e-9")
    run.succeeds("vit-train", "resume=some/run", "train.max_minutes=null")
    curves = EventAccumulator("some/run").Reload()
    assert [how for call, how, _ in fakes["mlflow"].calls if call == "end"] == 2 * [("FINISHED",)]
    for fake, tag in product(fakes.values(), ("loss/train", "acc/val", "test/acc")):
        points = {
            named.get("step", values[-1]): values[0][tag]
            for call, values, named in fake.calls
            if call == "log" and tag in values[0]
        }
        shown = curves.Scalars(tag)
        assert list(points.values()) == pytest.approx([each.value for each in shown])
        if tag != "test/acc":  # which TensorBoard shows as a hyperparameter's metric, at step 0
            assert list(points) == [each.step for each in shown]
    for fake in fakes.values():
        ends = [call for call, *_ in fake.calls if call in ("start", "end")]
        assert ends == ["start", "end"] * 2
    run.succeeds(
        "vit-train", *settings[:-1], "hydra.run.dir=again/some/run", "train.max_minutes=1e-9"
    )
    for fake in fakes.values():
        first, resumed, another = fake.records
        assert first == resumed != another  # though the folders have the same names


def test_a_package_that_a_tracker_lacks_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Path("mlflow.py").write_text("import no_such", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    words = "trackers=[mlflow] needs a package: pip install no_such"
    run.fails(words, "vit-train", *SMALL, "trackers=[mlflow]")


def test_training_continues_without_a_tracker_that_fails(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeTracker("trackio")
    fake.log = lambda *values, **named: 1 / 0
    monkeypatch.setitem(sys.modules, "trackio", fake)
    said = run.succeeds("vit-train", *SMALL, "trackers=[trackio]").said
    assert said.count("trackers: no longer sending to trackio: division by zero") == 1
    fake.init = fake.log
    run.fails(
        "trackers=[trackio] cannot start: division", "vit-train", *SMALL, "trackers=[trackio]"
    )
