"""Failures during a run: the disk, the numbers, the memory, a job of a sweep."""

import errno
import math
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
import torch
from checkpoints import write
from conftest import SMALL, Run, SmallRun
from test_resume import Limit, assert_same_run, failing_after

from vit_train.base.reading import read_json
from vit_train.base.writing import save_archive
from vit_train.loop import schedule
from vit_train.run import reports
from vit_train.run import saver as checkpoint_manager
from vit_train.tasks.classify import Classify
from vit_train.trained.checkpoint import Checkpoint

FULL = OSError(errno.ENOSPC, "No space left on device")


def failing_open(limit: Limit) -> Callable[[Path, str], AbstractContextManager[Mock]]:
    """Opening, and every write and flush, can fail."""
    opening = limit(Path.open)

    @contextmanager
    def opened(path: Path, mode: str) -> Iterator[Mock]:
        with opening(path, mode) as file:
            yield Mock(wraps=file, write=limit(file.write), flush=limit(file.flush))

    return opened


def test_a_full_disk_leaves_an_intact_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for calls in range(100):
        path = tmp_path / str(calls) / "last.safetensors"
        write(path, keep=1, step=1)
        write(path, keep=1, step=2)
        limit = failing_after(calls, FULL)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", failing_open(limit))
            patch.setattr(Path, "replace", limit(Path.replace))
            patch.setattr(os, "fsync", limit(os.fsync))
            try:
                write(path, keep=1, step=3)
                break
            except OSError as error:
                assert error is FULL
        kept = [path, path.with_name("last-1.safetensors")]
        assert max(Checkpoint.load(each).step for each in kept if each.exists()) >= 2, calls
        assert not list(path.parent.glob("*.partial"))
    assert calls >= 6  # open, write, flush, fsync, two renamings at least
    assert Checkpoint.load(path).step == 3


def test_a_run_resumes_after_a_disk_failure(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    words = os.strerror(errno.EIO)
    failing = failing_after(2, OSError(errno.EIO, words))(save_archive)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_manager, "save_archive", failing)
        outcome = run.fails(words, "vit-train", *SMALL, "hydra.run.dir=run")
    assert f"Resume with: vit-train resume={Path('run').absolute()}\n" in outcome.err
    assert read_json(Path("run/summary.json"))["status"] == "failed"
    assert words in Path("run/train.log").read_text(encoding="utf-8")
    run.succeeds("vit-train", "resume=run")
    assert read_json(Path("run/summary.json"))["status"] == "finished"


@pytest.mark.parametrize("on_error", ["stop", "continue"])
def test_a_failure_before_the_first_checkpoint_names_the_file(
    run: Run, monkeypatch: pytest.MonkeyPatch, on_error: str
) -> None:
    """Writing itself names no file."""
    train = ["vit-train", *SMALL, f"checkpoint.on_error={on_error}", "hydra.run.dir=run"]
    opening, full = Path.open, OSError(errno.ENOSPC, "No space left on device")

    def failing(path: Path, mode: str = "r", **more: Any) -> Any:
        if not path.match("events.*") or mode != "r+b":
            return opening(path, mode, **more)
        file = MagicMock()
        file.__enter__().write.side_effect, file.__exit__.return_value = full, False
        return file

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", failing)
        outcome = run.fails("No space left on device. ", *train)
    folder = Path("run").absolute()
    assert (
        "events.out" in outcome.err and f"Resume with: vit-train resume={folder}\n" in outcome.err
    )
    run.succeeds("vit-train", "resume=run")


# What a run writes besides its checkpoints, each by the function that does so.
REPORTS = {
    "metrics.csv": (reports, "write_text"),
    "events.out.tfevents.*": (reports, "write_from"),
    "pictures.png": (reports, "replacing"),
}


def failing_writes(
    monkeypatch: pytest.MonkeyPatch, pattern: str, fails: Callable[[int], bool]
) -> None:
    """Let the writing of a report fail, of those that are counted from 1."""
    where, name = REPORTS[pattern]
    write, number = getattr(where, name), count(1)

    def counted(path: Path, *what: Any) -> Any:
        if path.match(pattern) and fails(next(number)):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write(path, *what)

    monkeypatch.setattr(where, name, counted)


PATIENT = [
    *("data.train_images=80", "train.epochs=3", "train.log_every=1"),
    "checkpoint.on_error=continue",
]


@pytest.fixture
def every_epoch_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_manager, "SHARE", math.inf)
    monkeypatch.setattr(reports, "PICTURES_SHARE", math.inf)


def test_reports_are_complete_after_a_full_disk(
    run: Run, monkeypatch: pytest.MonkeyPatch, every_epoch_is_saved: None
) -> None:
    train = ["vit-train", *SMALL, *PATIENT]
    run.succeeds(*train, "hydra.run.dir=undisturbed")
    for pattern, place in zip(REPORTS, "abc", strict=True):
        last = Path(place, "checkpoints/last.safetensors")
        with monkeypatch.context() as patch:
            failing_writes(patch, pattern, lambda number, last=last: last.exists())
            outcome = run.fails("Resume with: vit-train resume=", *train, f"hydra.run.dir={place}")
        assert outcome.out.count(". Training continues, but no checkpoint is saved") == 1
        assert Path(pattern).stem in outcome.err
        run.succeeds("vit-train", f"resume={place}")
    for pattern in REPORTS:
        first = 1 if pattern == "pictures.png" else 2  # opened, a report has been written once
        failing_writes(monkeypatch, pattern, lambda number, first=first: number == first)
    run.says("the disk is writable again", *train, "hydra.run.dir=passing")
    for place in (*"abc", "passing"):
        assert_same_run(Path("undisturbed"), Path(place))
        assert Path(place, "pictures.png").exists()


@pytest.mark.parametrize(("moved", "on_error"), [(True, "continue"), (False, "stop")])
def test_a_deleted_or_moved_folder_ends_the_run(
    run: Run,
    small_run: SmallRun,
    monkeypatch: pytest.MonkeyPatch,
    every_epoch_is_saved: None,
    moved: bool,
    on_error: str,
) -> None:
    saved: list[Path] = []

    def vanishing(path: Path, *what: Any) -> None:
        save_archive(path, *what)
        saved.append(path)
        if len(saved) == 2:  # the best and the last of the first epoch
            shutil.move("runs/run", "elsewhere") if moved else shutil.rmtree("runs/run")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_manager, "save_archive", vanishing)
        arguments = [*SMALL, f"checkpoint.on_error={on_error}", "hydra.run.dir=runs/run"]
        run.fails("run has been deleted, moved or unmounted", "vit-train", *arguments)
    assert len(saved) == 2 and list(Path("runs").iterdir()) == []
    if moved:
        run.succeeds("vit-train", "resume=elsewhere")
        assert_same_run(small_run("finished", "whole"), Path("elsewhere"))


def not_a_number_at(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
    step, sums = count(1), Classify.step_sums

    def broken(self: Classify, model: Any, images: torch.Tensor, targets: torch.Tensor) -> Any:
        return sums(self, model, images, targets) * (math.nan if next(step) in steps else 1)

    monkeypatch.setattr(Classify, "step_sums", broken)


ONE_MICRO_BATCH = ["train.micro_batch=32", "hydra.run.dir=run"]


def test_a_nan_loss_is_reported_with_its_step_and_batch(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    not_a_number_at(monkeypatch, {8})
    train = ["vit-train", *SMALL, *ONE_MICRO_BATCH, "checkpoint.every_steps=1"]
    outcome = run(*train)
    assert outcome.status == 3 and "NaN or infinite at step 8 (batch 3 of epoch 2)" in outcome.err
    assert "optim.lr" in outcome.err and "intact" not in outcome.err
    assert read_json(Path("run/summary.json"))["status"] == "diverged"
    assert Checkpoint.load(Path("run/checkpoints/last.safetensors")).step == 7
    saved = torch.load("run/nonfinite-step-8.pt", weights_only=True)
    assert len(saved["images"]) == len(saved["targets"]) == 32


def test_steps_with_nan_are_skipped_up_to_a_limit(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "MOST_SKIPS", 2)
    skip = [*SMALL, *ONE_MICRO_BATCH, "train.on_nonfinite=skip"]
    with monkeypatch.context() as patch:
        not_a_number_at(patch, {2, 8})
        run.succeeds("vit-train", *skip)
    summary = read_json(Path("run/summary.json"))
    assert (summary["steps_left_out"], summary["steps"]) == (2, 10)
    assert Path("run/nonfinite-step-2.pt").exists()
    weights = Checkpoint.load(Path("run/checkpoints/last.safetensors")).model.values()
    assert all(weight.isfinite().all() for weight in weights)
    not_a_number_at(monkeypatch, {2, 4, 8})
    outcome = run("vit-train", *skip, "hydra.run.dir=again")
    assert outcome.status == 3 and "3 steps had a NaN or infinite loss" in outcome.err


@pytest.mark.parametrize(
    ("error", "settings", "tried", "less"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), [], 16, 8),
        (RuntimeError("can't allocate memory: you tried"), ["train.micro_batch=8"], 8, 4),
    ],
)
def test_out_of_memory_suggests_a_smaller_micro_batch(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    settings: list[str],
    tried: int,
    less: int,
) -> None:
    monkeypatch.setattr(Classify, "step_sums", Mock(side_effect=error))
    words = f"out of memory with {tried} images at once"
    outcome = run.fails(words, "vit-train", *SMALL, *settings, "hydra.run.dir=run")
    assert f"use train.micro_batch={less}" in outcome.err
    assert "intact" not in outcome.err  # there is no checkpoint yet


def test_out_of_memory_in_evaluation_suggests_a_smaller_batch(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")
    monkeypatch.setattr(Classify, "sample_outputs", Mock(side_effect=error))
    words = "out of memory with 40 images at once: use train.eval_batch_size=20"
    run.fails(words, "vit-train", *SMALL, "train.eval_batch_size=40")


def test_a_sweep_continues_after_a_failed_job(run: Run) -> None:
    few = [*SMALL, "data.train_images=60", "train.epochs=1"]
    sweep = ["-m", "model.patch_size=4,5,8", "hydra.sweep.dir='my sweep'"]
    outcome = run.fails("must divide the image size 32", "vit-train", *few, *sweep)
    assert "2 of 3 jobs finished" in outcome.out and "\n  job 1, " in outcome.err
    finished = {path.parent.name for path in Path("my sweep").glob("*/summary.json")}
    assert finished == {"patch_size_4", "patch_size_8"}
    (following,) = re.findall(r"^next +(vit-results .+)$", outcome.out, re.MULTILINE)
    run.succeeds(*shlex.split(following))
    assert Path("my sweep/results.md").exists()


def mount(*options: str) -> bool:
    if shutil.which("mount") is None:
        return False
    return subprocess.run(["mount", *options], capture_output=True).returncode == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system."""
    place = tmp_path / "disk"
    place.mkdir()
    if not mount("-t", "tmpfs", "-o", "size=400k", "tmpfs", str(place)):
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", "-l", place], capture_output=True)


def test_a_run_resumes_after_a_full_disk(run: Run, small_run: SmallRun, disk: Path) -> None:
    outcome = run.fails("No space left on device", "vit-train", *SMALL, "hydra.run.dir=disk/run")
    command = outcome.err.strip().rpartition("Resume with: vit-train ")[2]
    assert mount("-o", "remount,size=9m", str(disk))
    run.succeeds("vit-train", command)
    assert_same_run(small_run("finished", "whole"), Path("disk/run"))


def test_a_read_only_disk_is_reported(run: Run, disk: Path) -> None:
    assert mount("-o", "remount,size=9m", str(disk))
    run.succeeds("vit-train", *SMALL, "train.max_minutes=1e-9", "hydra.run.dir=disk/run")
    assert mount("-o", "remount,ro", str(disk))
    for command in ([*SMALL, "hydra.run.dir=disk/new"], ["resume=disk/run"]):
        assert "handler" not in run.fails("Read-only file system", "vit-train", *command).err
