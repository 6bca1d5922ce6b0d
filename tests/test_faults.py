"""Failures during a run: the disk, the numbers, the memory, a job of a sweep."""

import errno
import math
import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from checkpoints import write
from conftest import SMALL, Run, SmallRun
from test_resume import assert_same_run

from vit_train.base.reading import read_json
from vit_train.base.writing import save_archive
from vit_train.data.config import ShapesConfig
from vit_train.data.sources import LOADERS
from vit_train.runs.checkpoint import Checkpoint
from vit_train.tasks.classify import Classify
from vit_train.training import checkpoints as checkpoint_manager
from vit_train.training import pictures, reports

FULL = OSError(errno.ENOSPC, "No space left on device")


class FullDisk:
    """Lets so many calls of the file system pass, then fails."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def limited(*what: Any, **more: Any) -> Any:
            if self.calls == 0:
                raise FULL
            self.calls -= 1
            return function(*what, **more)

        return limited


class File:
    """A file whose every write and flush can fail."""

    def __init__(self, file: Any, disk: FullDisk) -> None:
        self.file = file
        self.write, self.flush = disk(file.write), disk(file.flush)
        self.fileno = file.fileno

    def __enter__(self) -> "File":
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()


def failing_open(disk: FullDisk) -> Callable[..., File]:
    opened = disk(Path.open)
    return lambda path, mode: File(opened(path, mode), disk)


def test_whichever_call_fails_for_want_of_space_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 0
    for calls in range(100):
        path = tmp_path / str(calls) / "last.safetensors"
        write(path, keep=1, step=1)
        write(path, keep=1, step=2)
        disk = FullDisk(calls)
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", failing_open(disk))
            patch.setattr(Path, "replace", disk(Path.replace))
            patch.setattr(os, "fsync", disk(os.fsync))
            try:
                write(path, keep=1, step=3)
            except OSError as error:
                assert error is FULL
                failures += 1
            else:
                break
        kept = [path, path.with_name("last-1.safetensors")]
        steps = [Checkpoint.load(each).step for each in kept if each.exists()]
        assert steps and max(steps) >= 2, calls
        assert not list(path.parent.glob("*.partial"))
    assert failures >= 6  # open, write, flush, fsync, two renamings at least
    assert Checkpoint.load(path).step == 3


def failing_saves(
    monkeypatch: pytest.MonkeyPatch, first: int, last: int, failure: OSError = FULL
) -> None:
    count = 0

    def save(*what: Any, **more: Any) -> None:
        nonlocal count
        count += 1
        if first <= count <= last:
            raise failure
        save_archive(*what, **more)

    monkeypatch.setattr(checkpoint_manager, "save_archive", save)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failing_disk_stops_the_run_with_a_way_to_go_on(
    number: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = OSError(number, os.strerror(number))
    with monkeypatch.context() as patch:
        failing_saves(patch, 3, 99, failure)
        outcome = run("vit-train", *SMALL, "hydra.run.dir=run")
    assert outcome.status == 1 and str(failure.strerror) in outcome.err
    command = f"vit-train resume={Path('run').absolute()}"
    assert f"last.safetensors is intact; resume with: {command}\n" in outcome.err
    assert "Traceback" not in outcome.err
    assert run("vit-train", "resume=run").status == 0
    assert read_json(Path("run/summary.json"))["status"] == "finished"


def test_with_on_error_continue_a_run_saves_again_once_it_can(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_saves(monkeypatch, 2, 4)
    monkeypatch.setattr(checkpoint_manager, "PAUSE", 0.0)
    outcome = run.succeeds(
        "vit-train", *SMALL, "train.epochs=5", "checkpoint.on_error=continue", "hydra.run.dir=run"
    )
    assert outcome.out.count("training continues: [Errno 28]") == 1
    assert outcome.out.count("the disk is writable again") == 1
    assert Checkpoint.load(Path("run/checkpoints/last.safetensors")).epoch == 5


# What a run writes besides its checkpoints, each by the function that does so.
REPORTS = {
    "metrics.csv": (reports, "write_text"),
    "events.out.tfevents.*": (reports, "write_from"),
    "pictures.png": (pictures, "replacing"),
}


def failing_writes(
    monkeypatch: pytest.MonkeyPatch, pattern: str, fails: Callable[[int], bool]
) -> None:
    """Let the writing of a report fail, of those that are counted from 1."""
    where, name = REPORTS[pattern]
    write, count = getattr(where, name), 0

    def counted(path: Path, *what: Any) -> Any:
        nonlocal count
        if path.match(pattern):
            count += 1
            if fails(count):
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write(path, *what)

    monkeypatch.setattr(where, name, counted)


PATIENT = [
    *("data.train_images=80", "train.epochs=4", "train.log_every=1"),
    "checkpoint.on_error=continue",
]


@pytest.fixture
def every_epoch_is_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_manager, "SHARE", math.inf)
    monkeypatch.setattr(pictures, "SHARE", math.inf)


def test_a_report_on_a_full_disk_is_complete_after_resuming_or_once_there_is_space(
    run: Run, monkeypatch: pytest.MonkeyPatch, every_epoch_is_saved: None
) -> None:
    train = ["vit-train", *SMALL, *PATIENT]
    run.succeeds(*train, "hydra.run.dir=undisturbed")
    for pattern, place in zip(REPORTS, "abc", strict=True):
        with monkeypatch.context() as patch:
            failing_writes(patch, pattern, lambda count: count > 2)
            outcome = run.fails(Path(pattern).stem, *train, f"hydra.run.dir={place}")
        assert outcome.out.count("training continues: [Errno 28] No space left on device") == 1
        assert "last.safetensors is intact; resume with" in outcome.err
        run.succeeds("vit-train", f"resume={place}")
    for pattern in REPORTS:
        first = 1 if pattern == "pictures.png" else 2  # opened, a report has been written once
        failing_writes(monkeypatch, pattern, lambda count, first=first: count == first)
    outcome = run.succeeds(*train, "hydra.run.dir=passing")
    assert "the disk is writable again" in outcome.out
    pictures = Path("undisturbed/pictures.png").read_bytes()
    for place in (*"abc", "passing"):
        assert_same_run(Path("undisturbed"), Path(place))
        assert Path(place, "pictures.png").read_bytes() == pictures


@pytest.mark.parametrize(("moved", "on_error"), [(True, "continue"), (False, "stop")])
def test_a_folder_that_is_gone_ends_the_run_and_is_not_made_again(
    run: Run,
    small_run: SmallRun,
    monkeypatch: pytest.MonkeyPatch,
    every_epoch_is_saved: None,
    moved: bool,
    on_error: str,
) -> None:
    whole = small_run("finished", "whole")
    saved: list[Path] = []

    def vanishing(path: Path, *what: Any) -> None:
        save_archive(path, *what)
        saved.append(path)
        if len(saved) == 2:  # the best and the last of the first epoch
            shutil.move("runs/run", "elsewhere") if moved else shutil.rmtree("runs/run")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_manager, "save_archive", vanishing)
        arguments = [*SMALL, f"checkpoint.on_error={on_error}", "hydra.run.dir=runs/run"]
        outcome = run("vit-train", *arguments)
    assert outcome.status == 1 and "run has been deleted, moved or unmounted" in outcome.err
    assert "Traceback" not in outcome.err and len(saved) == 2
    assert list(Path("runs").iterdir()) == []
    if moved:
        assert run("vit-train", "resume=elsewhere").status == 0
        assert_same_run(whole, Path("elsewhere"))


def not_a_number_at(monkeypatch: pytest.MonkeyPatch, steps: set[int]) -> None:
    count, sums = 0, Classify.step_sums

    def broken(self: Classify, model: Any, images: torch.Tensor, targets: torch.Tensor) -> Any:
        nonlocal count
        count += 1
        return sums(self, model, images, targets) * (float("nan") if count in steps else 1)

    monkeypatch.setattr(Classify, "step_sums", broken)


ONE_MICRO_BATCH = ["train.micro_batch=32", "hydra.run.dir=run"]


def test_a_nan_loss_is_reported_with_its_step_and_batch(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    not_a_number_at(monkeypatch, {8})
    outcome = run("vit-train", *SMALL, *ONE_MICRO_BATCH, "checkpoint.every_steps=1")
    assert outcome.status == 1
    assert "NaN or infinity at step 8 (batch 3 of epoch 2)" in outcome.err
    assert Checkpoint.load(Path("run/checkpoints/last.safetensors")).step == 7
    saved = torch.load("run/nonfinite-step-8.pt", weights_only=True)
    assert saved["images"].shape[0] == saved["targets"].shape[0] == 32


def test_steps_with_nan_are_skipped_up_to_max_skips(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip = ["train.on_nonfinite=skip", "train.max_skips=2"]
    with monkeypatch.context() as patch:
        not_a_number_at(patch, {2, 8})
        outcome = run("vit-train", *SMALL, *ONE_MICRO_BATCH, *skip)
    assert outcome.status == 0, outcome.err
    summary = read_json(Path("run/summary.json"))
    assert summary["steps_left_out"] == 2 and summary["steps"] == 10
    assert Path("run/nonfinite-step-2.pt").exists()
    assert all(
        w.isfinite().all()
        for w in Checkpoint.load(Path("run/checkpoints/last.safetensors")).model.values()
    )
    not_a_number_at(monkeypatch, {2, 4, 8})
    run.fails(
        "3 steps had NaN or infinity",
        "vit-train",
        *SMALL,
        *ONE_MICRO_BATCH,
        *skip,
        "hydra.run.dir=again",
    )


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
    assert f"set train.micro_batch={less}" in outcome.err


def test_a_sweep_lists_the_commands_that_resume_its_jobs(run: Run) -> None:
    few = [*SMALL, "data.train_images=60"]
    sweep = ["-m", "seed=0,1", "train.max_minutes=1e-9", "hydra.sweep.dir=sweep"]
    outcome = run.succeeds("vit-train", *few, *sweep)
    assert "0 of 2 jobs finished" in outcome.out and "vit-results" not in outcome.out
    commands = re.findall(r"^  vit-train (resume=.+)$", outcome.out, re.MULTILINE)
    assert [Path(each).name for each in commands] == ["0", "1"]
    run.succeeds("vit-train", commands[1], "train.max_minutes=null")


def test_a_sweep_goes_on_past_a_job_that_fails(run: Run) -> None:
    outcome = run(
        "vit-train", "-m", *SMALL, "data.train_images=60", "train.epochs=1",
        "model.patch_size=4,5,8", "hydra.sweep.dir='my sweep'",
    )  # fmt: skip
    assert outcome.status == 1 and "Traceback" not in outcome.err
    assert "2 of 3 jobs finished" in outcome.out
    assert "\n  job 1, " in outcome.err and "must divide the image size 32" in outcome.err
    for number, there in ((0, True), (1, False), (2, True)):
        assert Path(f"my sweep/{number}/summary.json").exists() == there
    (following,) = re.findall(r"^next +(vit-results .+)$", outcome.out, re.MULTILINE)
    assert run(*shlex.split(following)).status == 0
    assert Path("my sweep/results.md").exists()


def test_an_allocator_that_fails_is_quoted_in_gigabytes(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under `ulimit -v`, where the machine has more than the process may take."""
    monkeypatch.setitem(LOADERS, ShapesConfig, lambda _: torch.empty(2**50, dtype=torch.uint8))
    outcome = run("vit-train", *SMALL)
    assert outcome.status == 1
    said = "out of memory: 1,125,900 GB more cannot be had: choose fewer or smaller images"
    assert outcome.err == f"vit-train: {said}\n"
