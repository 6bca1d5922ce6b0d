"""Which weights are kept, and when."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch
from checkpoints import ABOUT, trainer_state
from torch import Tensor

from vit_train.base.writing import save_archive
from vit_train.engine.config import CheckpointConfig
from vit_train.engine.metrics import Evaluation
from vit_train.engine.schedule import better
from vit_train.engine.state import Best, TrainerState
from vit_train.engine.trainer import TrainLog
from vit_train.runs.checkpoint import Checkpoint
from vit_train.training import checkpoints as checkpoint_manager
from vit_train.training.checkpoints import PAUSE, CheckpointManager

LOG = TrainLog(1, 1, 1, {}, 0.1, 1.0)
NAMES = ("best.safetensors", "last.safetensors")


def loader_of(batches: int) -> MagicMock:
    loader = MagicMock()
    loader.__len__.return_value = batches
    loader.epoch.side_effect = lambda *place: iter([(torch.zeros(1), torch.zeros(1))])
    return loader


class Trainer:
    """As much of one as is kept."""

    def __init__(self) -> None:
        self.step = self.epoch = self.left_out = 0
        self.finished = False
        self.best: Best | None = None
        self.train_loader = loader_of(10)

    def validated(self, loss: float) -> Evaluation:
        """The validation of this epoch, as the trainer notes it."""
        val = Evaluation(count=5, loss=loss)
        self.best = better(self.best, self.epoch, val)
        return val

    def state(self) -> TrainerState:
        return trainer_state(step=self.step, epoch=self.epoch, best=self.best)

    def leave_out(self, began: float) -> None:
        self.left_out += 1


class Reports:
    """A report of so many bytes."""

    def __init__(self) -> None:
        self.written = self.unwritten = 0
        self.full = False

    def flush(self) -> None:
        if self.full:
            raise OSError("No space left on device")
        self.written, self.unwritten = self.written + self.unwritten, 0


def make_manager(
    folder: Path, config: CheckpointConfig | None = None, reports: Reports | None = None
) -> CheckpointManager:
    said = reports or Reports()

    def make(trainer: Trainer) -> Checkpoint:
        written = {"metrics.csv": said.written + said.unwritten}
        return Checkpoint(**ABOUT, **vars(trainer.state()), written=written)

    return CheckpointManager(folder, config or CheckpointConfig(), make, said.flush)


def after_epochs(manager: CheckpointManager, losses: list[float | None]) -> None:
    trainer = Trainer()
    for loss in losses:
        trainer.epoch += 1
        trainer.finished = trainer.epoch == len(losses)
        trainer.step += 10
        val = None if loss is None else trainer.validated(loss)
        manager.on_epoch(trainer, LOG, val)


def test_the_best_epoch_and_the_last_are_kept(tmp_path: Path) -> None:
    manager = make_manager(tmp_path)
    after_epochs(manager, [0.5, 0.2, 0.3, 0.2, 0.4])
    best, last = (Checkpoint.load(tmp_path / name) for name in NAMES)
    assert best.epoch == 2 and last.epoch == 5
    for checkpoint in (best, last):
        assert checkpoint.classes == ["a", "b"]
        assert checkpoint.best == Best(2, -0.2, {"loss": 0.2})


def test_short_epochs_are_not_spent_on_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing takes a tenth of a second, an epoch one."""
    now, written = 100.0, []

    def save(path: Path, archive: bytes, keep: int) -> None:
        nonlocal now
        now += 0.1
        save_archive(path, archive, keep)
        written.append((path.name, Checkpoint.load(path).epoch))

    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr(checkpoint_manager, "save_archive", save)
    manager, trainer = make_manager(tmp_path), Trainer()
    for trainer.epoch in range(1, 41):
        now += 1
        trainer.finished = trainer.epoch == 40
        improves = trainer.epoch in (1, 3, 5)
        manager.on_epoch(trainer, LOG, trainer.validated(1 / trainer.epoch if improves else 9))
    assert written == [
        ("best.safetensors", 1), ("last.safetensors", 1),  # 0.2 s, so the next after 20
        ("best.safetensors", 5), ("last.safetensors", 21), ("last.safetensors", 40),
    ]  # fmt: skip
    trainer.finished = False
    manager.on_epoch(trainer, LOG, trainer.validated(0.01))
    assert written[-1] == ("last.safetensors", 40)
    manager.on_nonfinite(trainer, 7)
    assert written[-1] == ("best.safetensors", 40)


def test_without_validation_there_is_no_best(tmp_path: Path) -> None:
    manager = make_manager(tmp_path, CheckpointConfig(keep=0))
    after_epochs(manager, [None, None])
    assert [each.name for each in tmp_path.iterdir()] == ["last.safetensors"]


def test_checkpoints_come_after_so_many_steps_or_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 500.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    path, trainer = tmp_path / "last.safetensors", Trainer()

    def saved(config: CheckpointConfig, seconds: float) -> list[int]:
        """The steps whose checkpoints are written, where a step takes so long."""
        nonlocal now
        manager, steps = make_manager(tmp_path, config), []
        for trainer.step in range(1, 10):
            now += seconds
            path.unlink(missing_ok=True)
            manager.on_step(trainer)
            steps += [trainer.step] if path.exists() else []
        return steps

    assert saved(CheckpointConfig(), 1e6) == []
    assert saved(CheckpointConfig(every_steps=4), 0) == [4, 8]
    assert saved(CheckpointConfig(every_minutes=0.5), 10) == [3, 6, 9]
    assert saved(CheckpointConfig(every_minutes=0.5, every_steps=5), 10) == [3, 5, 8]
    assert trainer.left_out == 8  # of the speed


def test_older_checkpoints_are_kept_of_the_last_and_none_of_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_manager, "SHARE", math.inf)  # after every epoch
    manager = make_manager(tmp_path, CheckpointConfig(keep=2))
    after_epochs(manager, [0.5, 0.4, 0.3, 0.2])
    kept = {each.name: Checkpoint.load(each).epoch for each in tmp_path.iterdir()}
    assert kept == {
        "best.safetensors": 4,
        "last.safetensors": 4,
        "last-1.safetensors": 3,
        "last-2.safetensors": 2,
    }


def test_what_was_reported_is_on_the_disk_first_and_as_long_as_the_checkpoint_says(
    tmp_path: Path,
) -> None:
    config, reports = CheckpointConfig(every_steps=1), Reports()
    manager = make_manager(tmp_path, config, reports)
    trainer, last = Trainer(), tmp_path / "last.safetensors"
    reports.unwritten = 10
    manager.on_stop(trainer)
    assert Checkpoint.load(last).written == {"metrics.csv": 10} and reports.written == 10
    reports.unwritten, reports.full = 5, True
    for event in (manager.on_stop, manager.on_step):
        with pytest.raises(OSError, match="No space"):
            event(trainer)
    assert Checkpoint.load(last).written == {"metrics.csv": 10}
    reports.full = False
    manager.on_stop(trainer)
    assert Checkpoint.load(last).written == {"metrics.csv": 15} and reports.written == 15


def test_reports_are_written_after_epochs_and_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, reports, trainer = 500.0, Reports(), Trainer()
    monkeypatch.setattr("time.monotonic", lambda: now)
    manager = make_manager(tmp_path, None, reports)
    manager.time.due_at = math.inf
    for event in (
        lambda: manager.on_epoch(trainer, LOG, None),
        lambda: manager.on_nonfinite(trainer, 1),
    ):
        reports.unwritten = 1
        event()
        assert not reports.unwritten and list(tmp_path.iterdir()) == []
    seconds = []
    for now in range(501, 601):
        reports.unwritten = 1
        manager.on_log(trainer, LOG)
        seconds += [] if reports.unwritten else [now]
    assert seconds == [530, 560, 590]


@pytest.mark.parametrize("failing", ["best.safetensors", "last.safetensors"])
def test_after_a_failure_of_the_disk_the_best_weights_are_still_those_of_its_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """The weights are changed in place by the steps that follow."""
    weights = torch.zeros(3)

    class Training(Trainer):
        def state(self) -> TrainerState:
            return replace(super().state(), model={"w": weights})

    def full(path: Path, archive: bytes, keep: int) -> None:
        if path.name == failing:
            raise OSError("No space left on device")
        save_archive(path, archive, keep)

    manager, trainer = make_manager(tmp_path), Training()
    trainer.epoch, weights[:] = 1, 1.0
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(checkpoint_manager, "save_archive", full)
        manager.on_epoch(trainer, LOG, trainer.validated(0.1))
    weights[:] = 2.0
    manager.on_stop(trainer)
    best, last = (Checkpoint.load(tmp_path / name) for name in NAMES)
    assert best.model["w"].tolist() == [1.0] * 3 and last.model["w"].tolist() == [2.0] * 3


def test_a_best_epoch_that_waits_for_its_writing_keeps_its_weights(tmp_path: Path) -> None:
    weights = torch.ones(3)

    class Training(Trainer):
        def state(self) -> TrainerState:
            return replace(super().state(), optimizers=[[{"moment": weights}]])

    manager, trainer = make_manager(tmp_path), Training()
    manager.time.due_at = math.inf
    manager.on_epoch(trainer, LOG, trainer.validated(0.1))
    weights[:] = 2.0
    manager.on_stop(trainer)
    best, last = (Checkpoint.load(tmp_path / name) for name in NAMES)
    assert best.optimizers[0][0]["moment"].tolist() == [1.0] * 3
    assert last.optimizers[0][0]["moment"].tolist() == [2.0] * 3


def test_after_a_failure_there_is_a_pause_and_then_another_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, reports, trainer = 1000.0, Reports(), Trainer()
    monkeypatch.setattr("time.monotonic", lambda: now)
    config = CheckpointConfig(every_steps=1, on_error="continue")
    manager, last = make_manager(tmp_path, config, reports), tmp_path / "last.safetensors"
    for step, seconds, full, saved in (
        (1, 0, True, 0),
        (2, PAUSE - 1, False, 0),  # within the pause
        (3, 1, True, 0),
        (4, PAUSE, False, 4),
    ):
        now, trainer.step, reports.full = now + seconds, step, full
        manager.on_step(trainer)
        assert saved == (Checkpoint.load(last).step if last.exists() else 0)
    for full in (False, True, False):  # an epoch is never left out
        reports.full, trainer.epoch = full, trainer.epoch + 1
        manager.on_epoch(trainer, LOG, None)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 4 and "training continues" in messages[0]
    assert messages[1] == messages[3] == "the disk is writable again"
    reports.full = trainer.finished = True
    for event in (manager.on_stop, lambda trainer: manager.on_epoch(trainer, LOG, None)):
        with pytest.raises(OSError, match="No space left"):
            event(trainer)  # after which nothing is tried again


def test_the_batch_with_nan_is_kept_with_its_place(tmp_path: Path) -> None:
    def epoch(epoch: int, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(first, 10):
            yield torch.full((2, 3), 100.0 * epoch + number), torch.tensor([epoch, number])

    trainer = Trainer()
    trainer.train_loader.epoch = epoch
    make_manager(tmp_path / "checkpoints").on_nonfinite(trainer, 28)
    kept = torch.load(tmp_path / "nonfinite-step-28.pt", weights_only=True)
    assert (kept["step"], kept["epoch"], kept["batch"]) == (28, 2, 7)
    assert (kept["images"] == 207).all() and kept["targets"].tolist() == [2, 7]
