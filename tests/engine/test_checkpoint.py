import os
import pickle
import stat
from pathlib import Path

import pytest
import torch

from vit_train.engine import checkpoint
from vit_train.engine.checkpoint import (
    newest_whole,
    read_checkpoint,
    save_checkpoint,
)
from vit_train.files.generations import generations


def test_what_is_saved_is_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints" / "last.pt"
    save_checkpoint(path, {"model": {"w": torch.eye(3)}, "rng": checkpoint.rng_states()})
    content = read_checkpoint(path)
    assert torch.equal(content["model"]["w"], torch.eye(3))
    assert torch.equal(content["rng"]["torch"], torch.get_rng_state())


def test_a_failed_write_leaves_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"step": 1})

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError):
        save_checkpoint(path, {"step": 2})
    assert read_checkpoint(path)["step"] == 1


def test_a_pickle_that_would_run_code_is_refused_and_does_nothing(tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "attacked"),)

    torch.save({"format": checkpoint.FORMAT, "model": Attack()}, tmp_path / "evil.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Attack()))
    content = {"format": checkpoint.FORMAT, "model": Attack()}
    (tmp_path / "sealed.pt").write_bytes(checkpoint.sealed(content))
    for name in ("evil.pt", "plain.pt", "sealed.pt"):
        with pytest.raises(ValueError, match="not a checkpoint of this version"):
            read_checkpoint(tmp_path / name)
    assert not (tmp_path / "attacked").exists()


@pytest.mark.parametrize("keep", [0, 1, 3, 10**20])
def test_so_many_older_files_are_kept_and_no_other_file_is_touched(
    tmp_path: Path, keep: int
) -> None:
    path, copy = tmp_path / "last.pt", tmp_path / "last-good.pt"
    copy.write_text("mine", encoding="utf-8")
    for step in range(12):
        save_checkpoint(path, {"step": step}, keep)
    kept = [read_checkpoint(each)["step"] for each in generations(path)]
    assert kept == list(range(11, -1, -1))[: keep + 1]
    save_checkpoint(path, {"step": 12}, min(keep, 1))
    assert len(generations(path)) == min(keep, 1) + 1
    assert copy.read_text(encoding="utf-8") == "mine"
    assert len(list(tmp_path.iterdir())) == min(keep, 1) + 2


def test_the_content_is_durable_before_its_name_and_the_name_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def noting_fsync(descriptor: int) -> None:
        happened.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def noting_replace(self: Path, target: Path) -> Path:
        happened.append(target.name)
        return replace(self, target)

    save_checkpoint(tmp_path / "last.pt", {"step": 1}, keep=1)
    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(Path, "replace", noting_replace)
    save_checkpoint(tmp_path / "last.pt", {"step": 2}, keep=1)
    named = happened.index("last.pt")
    assert "file" in happened[:named] and "last-1.pt" in happened[:named]
    if hasattr(os, "O_DIRECTORY"):
        assert happened[-1] == "folder" and len(happened) - 1 > named


def test_random_states_come_back() -> None:
    states = checkpoint.rng_states()
    drawn = torch.rand(3)
    checkpoint.set_rng_states(states)
    assert torch.equal(torch.rand(3), drawn)


def test_the_newest_whole_checkpoint_is_the_one_written_last(tmp_path: Path) -> None:
    assert newest_whole(tmp_path) is None
    for second, name in enumerate(("b.pt", "a.pt", "c.pt", "torn.pt")):
        save_checkpoint(tmp_path / name, {"step": second})
        os.utime(tmp_path / name, (1000 + second, 1000 + second))
    torn = tmp_path / "torn.pt"
    torn.write_bytes(torn.read_bytes()[:-1])  # the last one written, and no longer whole
    os.utime(torn, (1003, 1003))
    assert newest_whole(tmp_path) == tmp_path / "c.pt"
    assert newest_whole(tmp_path, without=tmp_path / "c.pt") == tmp_path / "a.pt"
