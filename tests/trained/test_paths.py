"""What a path to a run means, and who may write into its folder."""

import contextlib
import errno
import json
import os
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from checkpoints import write
from conftest import SMALL, Run, SmallRun, posix

from vit_train.base import writing
from vit_train.base.writing import exclusive
from vit_train.trained import folder as paths
from vit_train.trained.folder import InUse, checkpoint_at, new_run, run_at
from vit_train.trained.load import load


def made(folder: Path, status: str, seconds: int, **more: object) -> Path:
    """The summary of a run that ended so many seconds after the epoch."""
    folder.mkdir(parents=True)
    summary = folder / "summary.json"
    summary.write_text(json.dumps({"status": status, **more}), encoding="utf-8")
    os.utime(summary, (seconds, seconds))
    return folder


def test_a_folder_means_its_best_checkpoint_or_its_last(tmp_path: Path) -> None:
    """last-1, as a kill leaves it between the two renames of a save."""
    with pytest.raises(ValueError, match="and no runs: name a run's folder"):
        checkpoint_at(tmp_path)
    for name in ("last-1", "last", "best"):
        path = tmp_path / f"checkpoints/{name}.safetensors"
        write(path)
        assert checkpoint_at(tmp_path) == path


def test_the_newest_finished_run_counts_whatever_it_is_called(tmp_path: Path) -> None:
    made(tmp_path / "b", "finished", 10)
    newest = made(tmp_path / "a", "finished", 20, best_val={"mine": None})
    made(tmp_path / "c", "interrupted", 30)
    (made(tmp_path / "d", "finished", 40) / "summary.json").write_text("{", encoding="utf-8")
    assert run_at(tmp_path) == newest


@pytest.mark.parametrize(
    "worse, better, words",
    [
        (
            {"loss": 0.5},
            {"loss": 0.25},
            "validation loss 0.5000); the best is {} (validation loss 0.25",
        ),
        ({"map": 0.25, "loss": 1.0}, {"map": 0.5, "loss": 2.0}, "mAP 25.00%); the best is {} (v"),
        ({"acc": 0.5}, {"acc": 0.25}, "(validation accuracy 50.00%)"),
        (None, {"acc": 0.5}, "(no validation); the best is {} "),
    ],
)
def test_the_best_of_several_runs_is_named(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    worse: dict[str, float] | None,
    better: dict[str, float],
    words: str,
) -> None:
    caplog.set_level("INFO")
    other = made(tmp_path / "a", "finished", 10, best_val=better)
    made(tmp_path / "b", "finished", 20, best_val=worse)
    run_at(tmp_path)
    assert words.format(other) in caplog.text
    assert ("the best is" in caplog.text) == ("the best is" in words)


def test_a_run_a_file_and_nothing_stand_for_themselves(tmp_path: Path) -> None:
    made(tmp_path / "run" / "inside", "finished", 10)
    (tmp_path / "run" / "config.yaml").write_text("seed: 0\n", encoding="utf-8")
    for path in (tmp_path / "run", tmp_path / "run/config.yaml", tmp_path / "nowhere"):
        assert run_at(path) == path


def test_vit_eval_load_and_init_from_take_a_folder_of_runs(run: Run, small_run: SmallRun) -> None:
    small_run("finished", "runs/one")
    small_run("interrupted", "runs/two")
    made(Path("runs/zero"), "finished", 10, best_val={"acc": 1.0, "loss": 0.1, "epoch": 3})
    words = "using the newest of 2 finished runs: runs/one (validation accuracy "
    better = "%); the best is runs/zero (validation accuracy 100.00%)\n"
    assert better in run.says(words, "vit-eval", "ckpt=runs").out
    assert Path("runs/one/eval-test/results.json").exists()
    assert load("runs")[1].path == Path("runs/one/checkpoints/best.safetensors")
    start = ["init_from=runs", "train.max_minutes=1e-9", "hydra.run.dir=new"]
    run.says(words, "vit-train", *SMALL, *start)
    assert words in Path("new/train.log").read_text(encoding="utf-8")
    for ended in ("one", "zero"):
        Path("runs", ended, "summary.json").write_text('{"status": "diverged"}', encoding="utf-8")
    words = "none of the runs in runs is finished: to use an unfinished run, name its own folder\n"
    run.fails(words, "vit-eval", "ckpt=runs")


def begin(folder: Path) -> None:
    (folder / "config.yaml").write_text("seed: 0\n", encoding="utf-8")


def test_a_run_that_never_began_leaves_nothing_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "run"
    with pytest.raises(KeyError), new_run(folder, named=True) as path:
        (path / "train.log").write_text("x", encoding="utf-8")
        raise KeyError
    assert not folder.exists()
    folder.mkdir()
    with pytest.raises(ValueError, match="why it ended"), new_run(folder, named=True) as path:
        (path / "data").mkdir()
        for name in ("notes.txt", "train.log"):
            (path / name).write_text("", encoding="utf-8")
        raise ValueError("why it ended")
    assert sorted(path.name for path in folder.iterdir()) == ["data", "notes.txt"]


def test_a_folder_that_was_chosen_is_never_another_runs(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyError), new_run(folder, named=True) as path:
        with pytest.raises(InUse, match="another process is writing into"):
            contextlib.ExitStack().enter_context(new_run(folder, named=True))
        begin(path)
        raise KeyError  # what began stays, whatever ends it
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    with pytest.raises(InUse, match="already contains a run"), new_run(folder, named=True):
        pass
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    (folder / "config.yaml").unlink()
    (folder / "checkpoints").mkdir()  # which can be resumed without the settings beside them
    with pytest.raises(InUse, match="already contains a run"), new_run(folder, named=True):
        pass


def test_a_run_is_looked_for_when_the_folder_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that waits just before it takes the lock, while another one begins and ends."""
    folder = tmp_path / "run"

    def late(path: Path) -> AbstractContextManager[None]:
        monkeypatch.undo()
        with new_run(folder, named=True) as run:
            begin(run)
        return exclusive(path)

    monkeypatch.setattr(paths, "exclusive", late)
    with pytest.raises(InUse, match="already contains a run"), new_run(folder, named=True):
        pass


def test_runs_that_begin_in_the_same_second_have_names_of_their_own(tmp_path: Path) -> None:
    folder, names = tmp_path / "12-00-00", []
    for held in (True, True, False):
        with contextlib.ExitStack() as stack:
            for _ in range(1 + held):
                path = stack.enter_context(new_run(folder, named=False))
                begin(path)
                names.append(path.name)
    assert names == ["12-00-00", *(f"12-00-00-{number}" for number in range(2, 6))]


@posix
def test_a_run_trains_without_locks_and_warns(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    number = errno.ENOLCK

    def refuse(*what: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(writing.fcntl, "flock", refuse)
    training = ["vit-train", *SMALL, "train.max_minutes=1e-9", "hydra.run.dir=run"]
    run.says(f"run/.lock cannot be locked ({os.strerror(number)}): make sure that", *training)
