"""A real file system that is full, read-only or gone; left out where mounting is not allowed."""

import math
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import conftest
import pytest
from conftest import SMALL, Run, SmallRun
from test_resume import assert_same_run

from vit_train.runs.checkpoint import Checkpoint
from vit_train.training import checkpoints as checkpoint_manager


def mount(*options: str) -> bool:
    if shutil.which("mount") is None:
        return False
    return subprocess.run(["mount", *options], capture_output=True).returncode == 0


class Everything(set[Any]):
    def __contains__(self, key: object) -> bool:
        return True


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small file system: pictures are small, too, lest the first ones fill it."""
    monkeypatch.setattr(conftest, "DRAWN", Everything())
    place = tmp_path / "disk"
    place.mkdir()
    if not mount("-t", "tmpfs", "-o", "size=700k", "tmpfs", str(place)):
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", "-l", place], capture_output=True)


def test_a_full_disk_loses_nothing_and_the_run_goes_on_with_more_space(
    run: Run, small_run: SmallRun, disk: Path
) -> None:
    outcome = run.fails("No space left on device", "vit-train", *SMALL, "hydra.run.dir=disk/run")
    assert "is intact; resume with: vit-train resume=" in outcome.err
    assert "Traceback" not in outcome.err
    command = outcome.err.strip().rpartition("resume with: vit-train ")[2]
    assert mount("-o", "remount,size=9m", str(disk))
    run.succeeds("vit-train", command)
    assert_same_run(small_run("finished", "whole"), Path("disk/run"))


def test_with_on_error_continue_the_end_of_a_run_is_not_lost(
    run: Run, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_manager, "SHARE", math.inf)  # after every epoch
    patient = [*SMALL, "train.epochs=4", "checkpoint.on_error=continue"]
    outcome = run("vit-train", *patient, "hydra.run.dir=disk/run")
    assert outcome.status == 1 and "training continues: [Errno 28]" in outcome.out
    assert "No space left on device" in outcome.err and "resume with" in outcome.err
    assert "Traceback" not in outcome.err
    kept = list(Path("disk/run/checkpoints").glob("*.safetensors"))
    assert kept and all(Checkpoint.load(each).step > 0 for each in kept)
    assert mount("-o", "remount,size=9m", str(disk))
    assert "4/4" in run.succeeds("vit-train", "resume=disk/run").out


def test_a_run_on_a_disk_that_cannot_be_written_does_not_begin_or_resume(
    run: Run, disk: Path
) -> None:
    assert mount("-o", "remount,size=9m", str(disk))
    run.succeeds("vit-train", *SMALL, "train.max_minutes=1e-9", "hydra.run.dir=disk/run")
    assert mount("-o", "remount,ro", str(disk))
    for command in ([*SMALL, "hydra.run.dir=disk/new"], ["resume=disk/run"]):
        outcome = run.fails("Read-only file system", "vit-train", *command)
        assert "handler" not in outcome.err


@pytest.mark.parametrize(
    ("folder", "during", "words"),
    [
        ("disk/run", True, "No such file or directory"),
        ("disk", False, "disk has been deleted, moved or unmounted"),
    ],
)
def test_a_disk_that_vanishes_is_not_replaced_by_the_folder_below_it(
    run: Run, disk: Path, monkeypatch: pytest.MonkeyPatch, folder: str, during: bool, words: str
) -> None:
    """During a save, or after one."""
    assert mount("-o", "remount,size=9m", str(disk))
    monkeypatch.setattr(checkpoint_manager, "SHARE", math.inf)  # after every epoch
    save, saved = checkpoint_manager.save_archive, []

    def vanishing(*what: object, **more: object) -> None:
        if during and len(saved) == 2:
            subprocess.run(["umount", "-l", disk], check=True)
        save(*what, **more)
        saved.append(None)
        if not during and len(saved) == 2:
            subprocess.run(["umount", "-l", disk], check=True)

    monkeypatch.setattr(checkpoint_manager, "save_archive", vanishing)
    run.fails(words, "vit-train", *SMALL, "train.epochs=4", f"hydra.run.dir={folder}")
    assert list(disk.iterdir()) == []
