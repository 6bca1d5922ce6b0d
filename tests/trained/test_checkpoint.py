"""What a checkpoint holds, and when one is written."""

import contextlib
import json
import math
import os
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from checkpoints import ABOUT, forge, resuming, sample, write
from safetensors.torch import load_file, save
from torch import Tensor

from vit_train.base.machine import memory_bytes, require_memory
from vit_train.base.reading import typed
from vit_train.base.writing import generations, save_archive
from vit_train.config.training import CheckpointConfig
from vit_train.loop.metrics import Evaluation
from vit_train.loop.schedule import better
from vit_train.loop.state import Best, TrainerState
from vit_train.loop.trainer import TrainLog
from vit_train.run import saver as checkpoint_manager
from vit_train.run.saver import PAUSE, CheckpointManager
from vit_train.trained import checkpoint
from vit_train.trained.checkpoint import Checkpoint, Extended, newest_intact

MODEL = {"w": torch.eye(3), "turned": torch.randn(3, 4).t(), "flag": torch.tensor(True)}


def test_every_type_is_read_as_it_was_saved(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    model = MODEL | {str(d): torch.randn(2, 3).to(d) for d in (torch.half, torch.bfloat16)}
    model["odd"] = model["same"] = torch.tensor([math.nan, math.inf, 0.1], dtype=torch.float64)
    saved = sample(
        model=model, optimizers=[[{"step": torch.tensor(3.0)}, {}]],
        extends=[Extended("a", 1, 2, 3, 0.1, "b", "c")], best=Best(3, -0.1, {"loss": 0.1}),
        config={"model": {"depth": 6, "name": "ü"}}, seen=torch.arange(3), temperature=2.0,
    )  # fmt: skip
    path.write_bytes(saved.to_bytes())
    read = Checkpoint.load(path)
    (plain, tensors), (again, back) = checkpoint.disassemble(saved), checkpoint.disassemble(read)
    assert again == plain | {"checksum": read.checksum} and len(read.checksum) == 64
    assert read.best == Best(3, -0.1, {"loss": 0.1}) and back.keys() == tensors.keys()
    for name, value in tensors.items():
        assert back[name].dtype == value.dtype
        torch.testing.assert_close(back[name], value, rtol=0, atol=0, equal_nan=True)
    # Any program that reads safetensors finds the weights by their plain names.
    assert torch.equal(load_file(path)["model.w"], MODEL["w"])


@pytest.mark.parametrize("damage", ["flip", "cut", "lose", "insert", "noise"])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    path, rng = tmp_path / "x.safetensors", random.Random(0)
    intact = sample(model=MODEL).to_bytes()
    for _ in range(60):
        at, count = rng.randrange(len(intact)), rng.randrange(1, 500)
        path.write_bytes({
            "flip": intact[:at] + bytes([intact[at] ^ 1 << count % 8]) + intact[at + 1 :],
            "cut": intact[:at],
            "lose": intact[:at] + intact[at + count :],
            "insert": intact[:at] + rng.randbytes(count) + intact[at:],
            "noise": rng.randbytes(6 * count),
        }[damage])  # fmt: skip
        with pytest.raises(ValueError, match=r"x\.safetensors: it is (damaged|not a checkpoint)"):
            Checkpoint.load(path)


def test_a_file_that_is_no_checkpoint_runs_no_code(tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "attacked"),)

    torch.save({"model": Attack()}, tmp_path / "evil")
    other = {"format": "vit_train checkpoint 2", "checksum": "", "content": {}}
    text = {"format": checkpoint.FORMAT, "checksum": checkpoint.checksum("x", {}), "content": "x"}
    for name, content in {
        "plain": pickle.dumps(Attack()),
        "empty": b"",
        "weights": save(MODEL | {"turned": torch.ones(1)}),
        "older": save({}, {checkpoint.KEY: json.dumps(other)}),
        "text": save({}, {checkpoint.KEY: json.dumps(text)}),
        "nested": save({}, {checkpoint.KEY: '{"a":' * 5000}),
        "a list": save({}, {checkpoint.KEY: "[]"}),
    }.items():
        (tmp_path / name).write_bytes(content)
    for path in tmp_path.iterdir():
        with pytest.raises(ValueError, match="not a checkpoint of this version of vit-train: name"):
            Checkpoint.load(path)
    assert not (tmp_path / "attacked").exists()


def test_missing_values_and_wrong_types_are_named(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    for change, words in (
        (
            lambda content, tensors: content.pop("model"),
            "missing 1 .* argument: 'model'",
        ),
        (lambda content, tensors: content.update(epoch="1"), "epoch must be of type int"),
        (lambda content, tensors: content["classes"].append(1), r"classes\[2\] must be of ty"),
        (lambda content, tensors: content["model"].update(w=0.5), "model.w must be of type T"),
        (lambda content, tensors: tensors.pop("model.w"), "a tensor is missing: 'model.w'"),
        (lambda content, tensors: content.update(start={"step": 1.5}), "start.step must be of"),
    ):
        write(path, model={"w": torch.ones(2)})
        forge(path, change)
        with pytest.raises(ValueError, match=words):
            Checkpoint.load(path)


@pytest.mark.parametrize("keep", [0, 1, 3, 10**20])
def test_older_checkpoints_are_kept_and_no_other_file_is_touched(tmp_path: Path, keep: int) -> None:
    path, copy = tmp_path / "last.safetensors", tmp_path / "last-good.safetensors"
    copy.write_text("mine", encoding="utf-8")
    for step in range(12):
        write(path, keep, step=step)
    kept = [Checkpoint.load(each).step for each in generations(path)]
    assert kept == list(range(11, -1, -1))[: keep + 1]
    write(path, min(keep, 1), step=12)
    assert len(generations(path)) == min(keep, 1) + 1 == len(list(tmp_path.iterdir())) - 1
    assert copy.read_text(encoding="utf-8") == "mine"


def test_the_content_is_durable_before_any_file_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    rename, path = Path.replace, tmp_path / "last.safetensors"

    def noting_replace(self: Path, target: Path) -> Path:
        happened.append(target.name)
        return rename(self, target)

    write(path, keep=1, step=1)
    monkeypatch.setattr(os, "fsync", lambda descriptor: happened.append("fsync"))
    monkeypatch.setattr(Path, "replace", noting_replace)
    write(path, keep=1, step=2)
    assert happened == ["fsync", "last-1.safetensors", path.name]


def test_the_newest_intact_checkpoint_is_the_one_written_last(tmp_path: Path) -> None:
    assert newest_intact(tmp_path) is None
    _, older, newest, torn = (tmp_path / f"{letter}.safetensors" for letter in "bact")
    for second, path in enumerate((_, older, newest, torn)):
        write(path, step=second)
        if path == torn:  # the last one written, and no longer whole
            torn.write_bytes(torn.read_bytes()[:-1])
        os.utime(path, (1000 + second, 1000 + second))
    assert newest_intact(tmp_path) == newest
    words = f"{newest.name} is intact: use it instead, or resume from"
    with pytest.raises(ValueError, match=words):
        Checkpoint.load(torn)


def test_the_checksum_depends_on_every_part() -> None:
    weights = [torch.ones(2, 3), torch.ones(3, 2), torch.ones(2, 3).int(), torch.zeros(2, 3)]
    different = [sample(model={"a": each}) for each in weights]
    different += [sample(model={"b": weights[0]}), sample(model={"a": weights[0]}, step=1)]
    assert len({checkpoint.checksum(*checkpoint.disassemble(each)) for each in different}) == 6


LOG = TrainLog(1, 1, 1, {}, 0.1, 1.0)


class Loader:
    def __len__(self) -> int:
        return 10

    def epoch(self, epoch: int, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(first, 10):
            yield torch.full((2, 3), 100.0 * epoch + number), torch.tensor([epoch, number])


class Trainer:
    """As much of one as is kept; its weights are changed in place by the steps."""

    step = epoch = left_out = 0
    finished = False
    best: Best | None = None

    def __init__(self) -> None:
        self.weights, self.moments = torch.zeros(3), torch.zeros(3)
        self.train_loader = Loader()

    def train_to(self, value: float) -> None:
        for each in (self.weights, self.moments):
            each.fill_(value)

    def validated(self, loss: float) -> Evaluation:
        """The validation of this epoch, as the trainer notes it."""
        val = Evaluation(count=5, loss=loss)
        self.best = better(self.best, self.epoch, val, "loss")
        return val

    def state(self) -> TrainerState:
        kept = {"model": {"w": self.weights}, "optimizers": [[{"moment": self.moments}]]}
        return resuming(step=self.step, epoch=self.epoch, best=self.best, **kept)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        yield
        self.left_out += 1


class Reports:
    """A report of so many bytes."""

    written = unwritten = 0
    full = False

    def checkpoint(self, trainer: Trainer) -> Checkpoint:
        written = {"metrics.csv": self.written + self.unwritten}
        return Checkpoint(**vars(trainer.state()), **ABOUT, written=written)

    def flush(self) -> None:
        if self.full:
            raise OSError("No space left on device")
        self.written, self.unwritten = self.written + self.unwritten, 0


def managed(folder: Path, **config: Any) -> tuple[CheckpointManager, Trainer, Reports]:
    reports, chosen = Reports(), CheckpointConfig(**config)
    manager = CheckpointManager(folder, chosen, reports.checkpoint, reports.flush, lambda: None)
    return manager, Trainer(), reports


def test_short_epochs_are_not_spent_on_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing takes a tenth of a second, an epoch one."""
    now, written = 100.0, []

    def save(path: Path, archive: bytes, keep: int | None) -> None:
        nonlocal now
        now += 0.1
        save_archive(path, archive, keep)
        written.append((path.stem, Checkpoint.load(path).epoch))

    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr(checkpoint_manager, "save_archive", save)
    manager, trainer, _ = managed(tmp_path)
    for trainer.epoch in range(1, 41):
        now += 1
        trainer.finished = trainer.epoch == 40
        loss = 1 / trainer.epoch if trainer.epoch in (1, 3, 5) else 9
        manager.on_epoch(trainer, LOG, trainer.validated(loss))
    first = [("best", 1), ("last", 1)]  # 0.2 s, so the next after 20
    assert written == [*first, ("best", 5), ("last", 21), ("last", 40)]
    trainer.finished = False
    manager.on_epoch(trainer, LOG, trainer.validated(0.01))
    manager.on_nonfinite(trainer, 7)
    assert written[5:] == [("best", 40)]


@pytest.mark.parametrize(
    "config, seconds, steps",
    [
        ({}, 1e6, []),
        ({"every_steps": 4}, 0, [4, 8]),
        ({"every_minutes": 0.5}, 10, [3, 6, 9]),
        ({"every_minutes": 0.5, "every_steps": 5}, 10, [3, 5, 8]),
    ],
)
def test_checkpoints_come_after_so_many_steps_or_minutes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any],
    seconds: float,
    steps: list[int],
) -> None:
    now, path, saved = 500.0, tmp_path / "last.safetensors", []
    monkeypatch.setattr("time.monotonic", lambda: now)
    manager, trainer, _ = managed(tmp_path, **config)
    for trainer.step in range(1, 10):
        now += seconds
        path.unlink(missing_ok=True)
        manager.on_step(trainer)
        saved += [trainer.step] if path.exists() else []
    assert saved == steps and trainer.left_out == len(steps)  # of the speed


def test_older_checkpoints_are_kept_of_the_last_and_none_of_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_manager, "SHARE", math.inf)  # after every epoch
    manager, trainer, _ = managed(tmp_path, keep=2)
    save_archive(tmp_path / "best-1.safetensors", sample(epoch=0).to_bytes())  # the user's own copy
    for trainer.epoch in range(1, 5):
        manager.on_epoch(trainer, LOG, trainer.validated(1 / trainer.epoch))
    epochs = {each.stem: Checkpoint.load(each).epoch for each in tmp_path.iterdir()}
    assert epochs == {"best": 4, "best-1": 0, "last": 4, "last-1": 3, "last-2": 2}


def test_reports_are_on_the_disk_before_the_checkpoint_that_counts_them(
    tmp_path: Path,
) -> None:
    manager, trainer, reports = managed(tmp_path, every_steps=1)
    for more, full, length in ((10, False, 10), (5, True, 10), (0, False, 15)):
        reports.unwritten, reports.full = reports.unwritten + more, full
        for event in (manager.on_step, manager.on_stop):
            with pytest.raises(OSError, match="No space") if full else contextlib.nullcontext():
                event(trainer)
        written = Checkpoint.load(tmp_path / "last.safetensors").written
        assert written == {"metrics.csv": length} and reports.written == length


def test_reports_are_written_after_epochs_and_within_them_in_a_share_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, seconds = 500.0, []
    monkeypatch.setattr("time.monotonic", lambda: now)
    manager, trainer, reports = managed(tmp_path)
    manager.saving.due_at = math.inf
    for event, *more in ((manager.on_epoch, LOG, None), (manager.on_nonfinite, 1)):
        reports.unwritten = 1
        event(trainer, *more)
        assert not reports.unwritten and list(tmp_path.iterdir()) == []
    manager.reporting.due_at = 530
    for now in range(501, 541):
        reports.unwritten = 1
        manager.on_log(trainer, LOG)
        seconds += [] if reports.unwritten else [now]
    assert seconds == [*range(530, 541)]  # writing takes no time here


@pytest.mark.parametrize("failing", ["best.safetensors", "last.safetensors", ""])
def test_best_weights_that_wait_for_their_writing_are_still_those_of_their_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """After a failure of the disk, or because it is not yet time to write."""

    def full(path: Path, archive: bytes, keep: int | None) -> None:
        if path.name == failing:
            raise OSError("No space left on device")
        save_archive(path, archive, keep)

    manager, trainer, _ = managed(tmp_path)
    manager.saving.due_at = -math.inf if failing else math.inf
    trainer.epoch = 1
    trainer.train_to(1.0)
    with monkeypatch.context() as patch, contextlib.suppress(OSError):
        patch.setattr(checkpoint_manager, "save_archive", full)
        manager.on_epoch(trainer, LOG, trainer.validated(0.1))
    trainer.train_to(2.0)
    manager.on_stop(trainer)
    for name, value in (("best", 1.0), ("last", 2.0)):
        kept = Checkpoint.load(tmp_path / f"{name}.safetensors")
        assert kept.model["w"].tolist() == [value] * 3
        assert kept.optimizers[0][0]["moment"].tolist() == [value] * 3


def test_after_a_failure_there_is_a_pause_and_then_another_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    manager, trainer, reports = managed(tmp_path, every_steps=1, on_error="continue")
    last = tmp_path / "last.safetensors"
    for step, seconds, full, saved in (
        (1, 0, True, 0),
        (2, PAUSE - 1, False, 0),  # within the pause
        (3, 1, True, 0),
        (4, PAUSE, False, 4),  # which only an epoch calls writable again
    ):
        now, trainer.step, reports.full = now + seconds, step, full
        manager.on_step(trainer)
        assert saved == (Checkpoint.load(last).step if last.exists() else 0)
    assert [each for each in caplog.messages if "again" in each] == caplog.messages[:1]
    for full in (False, True, False):  # an epoch is never left out
        reports.full, trainer.epoch = full, trainer.epoch + 1
        manager.on_epoch(trainer, LOG, None)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 4 and "Training continues" in messages[0]
    assert messages[1] == messages[3] == "the disk is writable again"
    reports.full = trainer.finished = True
    for event in (manager.on_stop, lambda trainer: manager.on_epoch(trainer, LOG, None)):
        with pytest.raises(OSError, match="No space left"):
            event(trainer)  # after which nothing is tried again


def test_the_batch_with_nan_is_kept_with_its_place(tmp_path: Path) -> None:
    manager, trainer, _ = managed(tmp_path / "checkpoints")
    manager.on_nonfinite(trainer, 28)
    kept = torch.load(tmp_path / "nonfinite-step-28.pt", weights_only=True)
    assert (kept["step"], kept["epoch"], kept["batch"]) == (28, 2, 7)
    assert (kept["images"] == 207).all() and kept["targets"].tolist() == [2, 7]


def test_whole_numbers_are_read_as_fractions_where_these_are_meant() -> None:
    found = typed(dict[str, float], {"a": 1, "b": 0.5}, "table")
    assert found == {"a": 1.0, "b": 0.5} and all(type(each) is float for each in found.values())
    assert typed(tuple[float, float], [1, 2.5], "pair") == (1.0, 2.5)


def test_memory_counts_as_infinite_where_the_system_does_not_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sysconf", Mock(side_effect=ValueError))
    assert memory_bytes() == math.inf
    require_memory(1e15, "a data set", "smaller images")
