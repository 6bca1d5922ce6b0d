"""Files that were damaged, or made to do harm: refused with a short message, and nothing done."""

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SMALL, Run

import vit_train
from vit_train.engine.checkpoint import read_checkpoint, sealed


def flip(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def lose(data: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(data))
    del data[place : place + rng.randrange(1, 5000)]


def zero(data: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(data))
    end = min(len(data), place + rng.randrange(1, 5000))
    if any(data[place:end]):
        data[place:end] = bytes(end - place)
    else:
        data[place] = 1


def insert(data: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(data))
    data[place:place] = rng.randbytes(rng.randrange(1, 100))


def noise(data: bytearray, rng: random.Random) -> None:
    data[:] = rng.randbytes(rng.randrange(3000))


@pytest.mark.parametrize("damage", [flip, cut, lose, zero, insert, noise])
def test_damaged_files_are_refused(
    checkpoint: bytes, damage: Callable[[bytearray, random.Random], None], tmp_path: Path
) -> None:
    rng = random.Random(damage.__name__)
    for _ in range(40):
        data = bytearray(checkpoint)
        damage(data, rng)
        (tmp_path / "fuzzed.pt").write_bytes(data)
        with pytest.raises(ValueError, match="it is damaged, or not a checkpoint"):
            read_checkpoint(tmp_path / "fuzzed.pt")


VALUES = [None, -1, 0, 10**12, 0.5, float("nan"), "", "x", [], [1], {}, {"name": "os.system"}]
VALUES += [torch.zeros(3), torch.zeros(0), True]


def places(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where the content that loading looks at can be changed: all but optimizer and the like."""
    found = [path] if path else []
    if isinstance(content, dict):
        skipped = ("optimizer", "rng", "scaler", "whole", "recent", "best", "written", "seconds")
        for key, value in content.items():
            if not (len(path) == 0 and key in skipped):
                found += places(value, (*path, key))
    return found


def test_sealed_files_with_other_contents_are_refused_or_do_no_harm(
    checkpoint: bytes, tmp_path: Path
) -> None:
    """A sealed file may hold anything: 150 of them, and no error but a ValueError."""
    path = tmp_path / "crafted.pt"
    path.write_bytes(checkpoint)
    content = read_checkpoint(path)
    rng = random.Random(0)
    everywhere, refused = places(content), 0
    for _ in range(150):
        crafted = copy.deepcopy(content)
        *way, last = rng.choice(everywhere)
        inner = crafted
        for key in way:
            inner = inner[key]
        if rng.random() < 0.2:
            del inner[last]
        else:
            inner[last] = rng.choice(VALUES)
        path.write_bytes(sealed(crafted))
        try:
            vit_train.load(path)
        except ValueError as error:
            assert len(str(error)) < 600
            refused += 1
    assert refused > 75


@pytest.mark.parametrize(
    "change",
    [
        {"depth": 10**9}, {"embed_dim": 2**20}, {"mlp_dim": 2**40}, {"patch_size": 1},
        {"name": "builtins.eval"}, {"_target_": "os.system"}, {"kernels": "__import__('os')"},
    ],
    ids=str,
)  # fmt: skip
def test_a_small_file_cannot_ask_for_a_huge_model_or_another_class(
    checkpoint: bytes, change: dict[str, Any], run: Run
) -> None:
    Path("crafted.pt").write_bytes(checkpoint)
    content = read_checkpoint(Path("crafted.pt"))
    content["config"]["model"] |= change
    Path("crafted.pt").write_bytes(sealed(content))
    outcome = run("vit-eval", "ckpt=crafted.pt")
    assert outcome.status == 1 and "Traceback" not in outcome.err
    assert outcome.err.startswith("vit-eval: ") and outcome.err.count("\n") <= 8


def test_a_crafted_state_cannot_be_resumed(checkpoint: bytes, run: Run) -> None:
    assert run("vit-train", *SMALL, "train.max_minutes=1e-9", "hydra.run.dir=run").status == 0
    path = Path("run/checkpoints/last.pt")
    content = read_checkpoint(path)
    changes = {"optimizer": {}, "whole": None, "model": {"x": torch.zeros(1)}, "written": None}
    changes |= {"epoch": None, "step": "x", "seconds": None}
    for key, value in changes.items():
        path.write_bytes(sealed(content | {key: value}))
        outcome = run("vit-train", "resume=run")
        assert outcome.status == 1 and "this checkpoint is not of this run" in outcome.err
        assert "Traceback" not in outcome.err
