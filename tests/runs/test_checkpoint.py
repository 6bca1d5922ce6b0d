import json
import os
import pickle
import random
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from checkpoints import forge, sample, write
from conftest import posix
from safetensors.torch import load_file, save, save_file

from vit_train.base.writing import generations
from vit_train.engine.state import Best
from vit_train.runs import checkpoint
from vit_train.runs.checkpoint import Checkpoint, Extended, newest_intact

MODEL = {"w": torch.eye(3), "turned": torch.randn(3, 4).t(), "flag": torch.tensor(True)}


def test_what_is_saved_is_what_is_read_whatever_its_type(tmp_path: Path) -> None:
    path = tmp_path / "checkpoints" / "last.safetensors"
    model = MODEL | {str(d): torch.randn(2, 3).to(d) for d in (torch.half, torch.bfloat16)}
    model["odd"] = torch.tensor([float("nan"), float("inf"), 0.1], dtype=torch.float64)
    extends = [Extended("a", 1, 2, 3, 0.1, "b", "c")]
    moments = [[{"step": torch.tensor(3.0)}, {}]]
    saved = sample(
        model=model, optimizers=moments, extends=extends, best=Best(3, -0.1, {"loss": 0.1}),
        config={"model": {"depth": 6, "name": "ü"}}, seen=torch.arange(3), temperature=2.0,
    )  # fmt: skip
    path.parent.mkdir()
    path.write_bytes(saved.to_bytes())
    read = Checkpoint.load(path)
    plain, tensors = checkpoint.apart(saved)
    again, back = checkpoint.apart(read)
    assert again == plain | {"checksum": read.checksum}
    assert read.best == Best(3, -0.1, {"loss": 0.1})
    assert back.keys() == tensors.keys() and len(read.checksum) == 64
    for name, value in tensors.items():
        assert back[name].dtype == value.dtype and back[name].shape == value.shape
        assert back[name].reshape(-1).view(torch.uint8).equal(value.reshape(-1).view(torch.uint8))
    # Any program that reads safetensors finds the weights by their plain names.
    assert torch.equal(load_file(path)["model.w"], MODEL["w"])


def test_a_copy_does_not_change_with_the_weights() -> None:
    weights = torch.zeros(3)
    copy = sample(model={"w": weights}, optimizers=[[{"m": weights}]]).copied()
    weights += 1
    assert copy.model["w"].tolist() == copy.optimizers[0][0]["m"].tolist() == [0.0] * 3


# The bytes of a file, a place in it and random numbers, and the damaged bytes.
DAMAGE: dict[str, Callable[[bytes, int, random.Random], bytes]] = {
    "flip": lambda data, at, rng: (
        data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    ),
    "cut": lambda data, at, rng: data[:at],
    "lose": lambda data, at, rng: data[:at] + data[at + rng.randrange(1, 500) :],
    "insert": lambda data, at, rng: data[:at] + rng.randbytes(rng.randrange(1, 100)) + data[at:],
    "noise": lambda data, at, rng: rng.randbytes(at),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_refused(kind: str, tmp_path: Path) -> None:
    rng, whole = random.Random(kind), sample(model=MODEL).to_bytes()
    for _ in range(200):
        damaged = DAMAGE[kind](whole, rng.randrange(len(whole)), rng)
        (tmp_path / "x.safetensors").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"x\.safetensors: it is (damaged|not a checkpoint)"):
            Checkpoint.load(tmp_path / "x.safetensors")


def test_a_file_that_is_no_checkpoint_runs_no_code(tmp_path: Path) -> None:
    class Attack:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "attacked"),)

    torch.save({"model": Attack()}, tmp_path / "evil")
    (tmp_path / "plain").write_bytes(pickle.dumps(Attack()))
    (tmp_path / "empty").touch()
    save_file(MODEL | {"turned": torch.ones(1)}, tmp_path / "weights")
    other = {"format": "vit_train checkpoint 2", "checksum": "", "content": {}}
    (tmp_path / "older").write_bytes(save({}, {checkpoint.KEY: json.dumps(other)}))
    (tmp_path / "nested").write_bytes(save({}, {checkpoint.KEY: '{"a":' * 5000}))
    (tmp_path / "a list").write_bytes(save({}, {checkpoint.KEY: "[]"}))
    for path in tmp_path.iterdir():
        with pytest.raises(ValueError, match="not a checkpoint of this version of vit-train: give"):
            Checkpoint.load(path)
    assert not (tmp_path / "attacked").exists()


def test_what_is_missing_or_of_another_type_is_named(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    for change, words in (
        (lambda content, tensors: content.pop("model"), "model is missing"),
        (lambda content, tensors: content.update(epoch="1"), "epoch must be of the type int"),
        (lambda content, tensors: content.update(epoch=True), "epoch must be of the type int"),
        (lambda content, tensors: content.update(image_shape=[3, 8]), "image_shape must have 3"),
        (lambda content, tensors: content["classes"].append(1), r"classes\[2\] must be of the ty"),
        (lambda content, tensors: content["model"].update(w=0.5), "model.w must be of the type T"),
        (lambda content, tensors: tensors.pop("model.w"), "it has no tensor model.w"),
        (lambda content, tensors: content.update(start={"step": 1.5}), "start.step must be of"),
    ):
        write(path, model={"w": torch.ones(2)})
        forge(path, change)
        with pytest.raises(ValueError, match=words):
            Checkpoint.load(path)


@posix
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="cannot read"):
        Checkpoint.load(tmp_path / "pipe")


@pytest.mark.parametrize("keep", [0, 1, 3, 10**20])
def test_so_many_older_files_are_kept_and_no_other_file_is_touched(
    tmp_path: Path, keep: int
) -> None:
    path, copy = tmp_path / "last.safetensors", tmp_path / "last-good.safetensors"
    copy.write_text("mine", encoding="utf-8")
    for step in range(12):
        write(path, keep, step=step)
    kept = [Checkpoint.load(each).step for each in generations(path)]
    assert kept == list(range(11, -1, -1))[: keep + 1]
    write(path, min(keep, 1), step=12)
    assert len(generations(path)) == min(keep, 1) + 1
    assert copy.read_text(encoding="utf-8") == "mine"
    assert len(list(tmp_path.iterdir())) == min(keep, 1) + 2


def test_the_content_is_durable_before_its_name_and_the_name_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    fsync, rename = os.fsync, Path.replace

    def noting_fsync(descriptor: int) -> None:
        happened.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    def noting_replace(self: Path, target: Path) -> Path:
        happened.append(target.name)
        return rename(self, target)

    path = tmp_path / "last.safetensors"
    write(path, keep=1, step=1)
    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(Path, "replace", noting_replace)
    write(path, keep=1, step=2)
    named = happened.index(path.name)
    assert "file" in happened[:named] and "last-1.safetensors" in happened[:named]
    if hasattr(os, "O_DIRECTORY"):
        assert happened[-1] == "folder" and len(happened) - 1 > named


def test_the_newest_intact_checkpoint_is_the_one_written_last(tmp_path: Path) -> None:
    assert newest_intact(tmp_path) is None
    names = [f"{letter}.safetensors" for letter in "bact"]
    for second, name in enumerate(names):
        write(tmp_path / name, step=second)
        os.utime(tmp_path / name, (1000 + second, 1000 + second))
    torn = tmp_path / names[-1]
    torn.write_bytes(torn.read_bytes()[:-1])  # the last one written, and no longer whole
    os.utime(torn, (1003, 1003))
    assert newest_intact(tmp_path) == tmp_path / names[2]
    assert newest_intact(tmp_path, without=tmp_path / names[2]) == tmp_path / names[1]
    with pytest.raises(ValueError, match=f"{names[2]} is intact: use it instead, or resume from"):
        Checkpoint.load(torn)


def test_the_checksum_depends_on_every_part() -> None:
    plain = sample(model={"a": torch.ones(2, 3)})
    changed = [
        replace(plain, step=1),
        replace(plain, model={"b": torch.ones(2, 3)}),
        replace(plain, model={"a": torch.ones(3, 2)}),
        replace(plain, model={"a": torch.ones(2, 3).int()}),
        replace(plain, model={"a": torch.zeros(2, 3)}),
    ]
    sums = {checkpoint.checksum(*checkpoint.apart(each)) for each in (plain, *changed)}
    assert len(sums) == 6
