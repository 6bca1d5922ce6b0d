import math
from pathlib import Path

import pytest
from conftest import csv_rows

from vit_train.engine.metrics import Evaluation
from vit_train.engine.trainer import TrainLog
from vit_train.training import reports as metrics_csv
from vit_train.training.reports import MetricsCsv


def log(epoch: int) -> TrainLog:
    return TrainLog(epoch, 10 * epoch, 320 * epoch, {"loss": 0.5, "acc": 0.25}, 1e-3, 64.04)


def rows(path: Path) -> list[dict[str, float]]:
    return [{k: float(v) for k, v in row.items()} for row in csv_rows(path)]


class Trainer:
    seconds = 7.04


def test_a_row_says_what_happened_in_its_epoch(tmp_path: Path) -> None:
    table = MetricsCsv(tmp_path / "metrics.csv")
    table.on_epoch(Trainer, log(1), Evaluation(count=20, loss=2.5))
    assert not table.path.exists()
    table.flush()
    assert table.path.stat().st_size == table.length
    (row,) = rows(tmp_path / "metrics.csv")
    assert row == {
        "epoch": 1, "step": 10, "images_seen": 320, "lr": 1e-3, "train_loss": 0.5,
        "train_acc": 0.25, "val_loss": 2.5, "images_per_s": 64.0, "seconds": 7.0,
    }  # fmt: skip


def test_a_table_that_is_there_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    for process in range(3):
        table = MetricsCsv(path)
        table.open()
        for epoch in (1, 2):
            table.on_epoch(Trainer, log(2 * process + epoch), None)
        table.flush()
    assert [row["epoch"] for row in rows(path)] == [1, 2, 3, 4, 5, 6]


def test_rows_that_could_not_be_written_are_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = MetricsCsv(tmp_path / "metrics.csv")

    def full(path: Path, text: str) -> None:
        raise OSError("No space left on device")

    for epoch in (1, 2, 3):
        table.on_epoch(Trainer, log(epoch), None)
        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
            patch.setattr(metrics_csv, "write_text", full)
            table.flush()
    table.flush()
    assert [row["epoch"] for row in rows(table.path)] == [1, 2, 3]


HEADER = "epoch,train_loss\n"


@pytest.mark.parametrize(
    "text",
    [
        HEADER.replace("\n", "\r") + "1,2.0\r",
        f"{HEADER}1,2.0\r2,3.0\n",
        f"{HEADER}1,{'0' * 140_000}\n",
        f"epoch,{'x' * 140_000}\n1,2.0\n",
        'epoch,"train\nloss"\n1,2.0\n',
        f"{HEADER}1,2.0\n\n",
        f'{HEADER}1,"2.0\n',
        f"{HEADER}1\n",
        f"{HEADER}1,2.0",
        f"{HEADER}1,x\n",
    ],
    ids=range(10),
)
def test_a_table_that_cannot_go_on_is_refused_before_training(tmp_path: Path, text: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(text.encode())
    with pytest.raises(ValueError, match=r"metrics\.csv is damaged: move it away"):
        MetricsCsv(path).open()


def test_a_table_that_another_version_began_keeps_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,train_loss,val_loss,val_gone\n1,2.0,3.0,4.0\n", encoding="utf-8")
    table = MetricsCsv(path)
    table.open()
    table.on_epoch(Trainer, log(2), Evaluation(count=20, loss=2.5))
    table.flush()
    first, second = rows(path)
    assert first.keys() == second.keys() and second["val_loss"] == 2.5 and second["epoch"] == 2
    assert math.isnan(second["val_gone"])
