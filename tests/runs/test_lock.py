"""A run's folder belongs to one run, and one process at a time writes into it."""

import contextlib
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from conftest import posix

from vit_train.base.writing import exclusive
from vit_train.runs import paths as lock
from vit_train.runs.paths import InUse, new_run, sole_writer


def begin(folder: Path) -> None:
    (folder / "config.yaml").write_text("seed: 0\n", encoding="utf-8")


def test_a_run_that_never_began_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "run"
    with pytest.raises(KeyError), new_run(folder, named=True) as path:
        assert path == folder and folder.is_dir()
        (folder / "train.log").write_text("x", encoding="utf-8")
        raise KeyError
    assert not folder.exists()
    folder.mkdir()
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    with new_run(folder, named=True):
        (folder / "train.log").write_text("x", encoding="utf-8")
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_what_somebody_else_makes_meanwhile_stays(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="why it ended"), new_run(tmp_path, named=True):
        (tmp_path / "data").mkdir()
        (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
        (tmp_path / "train.log").write_text("", encoding="utf-8")
        raise ValueError("why it ended")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "notes.txt"]


def test_a_run_that_began_stays_whatever_ends_it(tmp_path: Path) -> None:
    with pytest.raises(KeyError), new_run(tmp_path / "run", named=True) as path:
        begin(path)
        raise KeyError
    assert (tmp_path / "run/config.yaml").exists()


def test_a_folder_that_was_chosen_is_never_another_runs(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with new_run(folder, named=True) as path:
        with pytest.raises(InUse, match="another process is training in"):
            contextlib.ExitStack().enter_context(new_run(folder, named=True))
        begin(path)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    with pytest.raises(InUse, match="already holds a run"), new_run(folder, named=True):
        pass
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    (folder / "config.yaml").unlink()
    (folder / "checkpoints").mkdir()  # which can be resumed without the settings beside them
    with pytest.raises(InUse, match="already holds a run"), new_run(folder, named=True):
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

    monkeypatch.setattr(lock, "exclusive", late)
    with pytest.raises(InUse, match="already holds a run"), new_run(folder, named=True):
        pass


def test_runs_that_begin_in_the_same_second_have_names_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "12-00-00"
    with contextlib.ExitStack() as stack:
        names = []
        for _ in range(3):
            path = stack.enter_context(new_run(folder, named=False))
            begin(path)
            names.append(path.name)
    assert names == ["12-00-00", "12-00-00-2", "12-00-00-3"]
    with new_run(folder, named=False) as path:
        assert path.name == "12-00-00-4"


@posix
def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious", encoding="utf-8")
    (tmp_path / ".lock").symlink_to(victim)
    with pytest.raises(ValueError, match="is a symbolic link"), sole_writer(tmp_path):
        pass
    assert victim.read_text(encoding="utf-8") == "precious"
