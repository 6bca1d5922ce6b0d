"""Files that were damaged, or made to do harm: refused with a short message, and nothing done."""

import copy
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SMALL, Run, SmallRun, posix

import vit_train
from vit_train.config import TrainConfig
from vit_train.data.config import ShapesConfig
from vit_train.engine.checkpoint import read_checkpoint, sealed
from vit_train.files.reading import read_json
from vit_train.files.writing import write_json
from vit_train.model.config import CnnConfig
from vit_train.runs.load import require_bounded_memory
from vit_train.tasks.config import ClassifyConfig


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
        skipped = ("optimizers", "rng", "scaler", "whole", "recent", "best", "written", "seconds")
        for key, value in content.items():
            if not (len(path) == 0 and key in skipped):
                found += places(value, (*path, key))
    return found


def test_sealed_files_with_other_contents_are_refused_or_do_no_harm(
    checkpoint: bytes, tmp_path: Path
) -> None:
    """A sealed file may hold anything: 60 of them, and no error but a ValueError."""
    path = tmp_path / "crafted.pt"
    path.write_bytes(checkpoint)
    content = read_checkpoint(path)
    rng = random.Random(0)
    everywhere, refused = places(content), 0
    for _ in range(60):
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
    assert refused > 30


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


def test_a_crafted_state_cannot_be_resumed(run: Run, small_run: SmallRun) -> None:
    path = small_run("interrupted") / "checkpoints/last.pt"
    content = read_checkpoint(path)
    changes = {"optimizers": [{}], "whole": None, "model": {"x": torch.zeros(1)}, "written": None}
    changes |= {"epoch": None, "step": "x", "seconds": None}
    for key, value in changes.items():
        path.write_bytes(sealed(content | {key: value}))
        outcome = run("vit-train", "resume=run")
        assert outcome.status == 1 and "this checkpoint is not from this run" in outcome.err
        assert "Traceback" not in outcome.err


def crafted(checkpoint: bytes, **changes: Any) -> Path:
    """A sealed file with these changes of its config (a dotted key) or of its content."""
    path = Path("crafted.pt")
    path.write_bytes(checkpoint)
    content = read_checkpoint(path)
    for key, value in changes.items():
        *way, last = key.split("__")
        inner = content
        for each in way:
            inner = inner[each]
        inner[last] = value
    path.write_bytes(sealed(content))
    return path


def doubled(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = {"a": value, "b": value}
    return value


HARMFUL: dict[str, tuple[dict[str, Any], str]] = {
    "stride 0": ({"model__extra": torch.zeros(1).expand(10**9)}, "more numbers than the file"),
    "shared in the config": ({"config__data__urls": doubled(40)}, "too many values"),
    "shared in the classes": ({"classes": doubled(40)}, "too many values"),
    "the environment": ({"config__data__root": "${oc.env:SECRET}"}, "an interpolation"),
    "many images": ({"config__data__train_images": 30_000_000}, "data.train_images=30000000"),
    "many test images": ({"config__data__test_images": 1_000_000}, "data.test_images=1000000"),
    "large images": (
        {"config__data__image_size": 8000, "image_shape": [3, 8000, 8000],
         "config__model__positions": "none"}, "",
    ),
    "normalised by zero": ({"std": [0.0, 0.0, 0.0]}, "cannot normalize images"),
    "normalised by words": ({"mean": ["x", "y", "z"]}, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", HARMFUL)
def test_a_small_file_takes_neither_memory_nor_time(
    name: str, checkpoint: bytes, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    monkeypatch.setattr(ShapesConfig, "load", None)
    changes, words = HARMFUL[name]
    crafted(checkpoint, **changes)
    outcome = run("vit-eval", "ckpt=crafted.pt")
    assert outcome.status == 1 and "Traceback" not in outcome.err, outcome.err
    assert words in outcome.err and "hunter2" not in outcome.err, outcome.err


def test_tables_that_are_not_in_the_file_are_counted(run: Run) -> None:
    """Relative positions keep a table of N×N distances; its weights are 2N − 1 short vectors."""
    arguments = [*SMALL, "model.positions=relative", "train.max_minutes=1e-9"]
    assert run("vit-train", *arguments, "hydra.run.dir=run").status == 0
    content = read_checkpoint(Path("run/checkpoints/last.pt"))
    patches = (640 // 4) ** 2
    content["image_shape"] = [3, 640, 640]
    for key, value in content["model"].items():
        if value.shape == (127, 4):
            content["model"][key] = torch.zeros(2 * patches - 1, 4)
    Path("crafted.pt").write_bytes(sealed(content))
    outcome = run("vit-eval", "ckpt=crafted.pt")
    assert outcome.status == 1 and "with this model's positions and attention" in outcome.err


def test_one_image_may_not_take_the_memory_of_thousands() -> None:
    """Neither the weights of a CNN nor its patches grow with its images."""
    config = TrainConfig(model=CnnConfig(), task=ClassifyConfig(), data=ShapesConfig())
    model = config.model.build((3, 32, 32), 10)
    with pytest.raises(ValueError, match="an image of 60000 by 60000 would take 43 GB"):
        require_bounded_memory(config, model, (3, 60_000, 60_000))


def test_weights_that_are_not_numbers_are_said_and_nothing_is_written(
    checkpoint: bytes, run: Run
) -> None:
    Path("crafted.pt").write_bytes(checkpoint)
    content = read_checkpoint(Path("crafted.pt"))
    for weight in content["model"].values():
        weight.fill_(float("nan"))
    Path("crafted.pt").write_bytes(sealed(content))
    outcome = run("vit-eval", "ckpt=crafted.pt")
    assert outcome.status == 1 and "its weights are damaged, or its training" in outcome.err
    outcome = run("vit-explain", "ckpt=crafted.pt")
    assert outcome.status == 1 and "answers with NaN: its weights are damaged" in outcome.err
    assert not list(Path().glob("eval-*"))


def test_numbers_that_are_none_become_null(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": [float("nan"), {"b": float("-inf")}], "c": (1, 0.5)})
    assert read_json(tmp_path / "x.json") == {
        "a": [None, {"b": None}],
        "c": [1, 0.5],
    }


NAMES = ["metrics.csv", "config.yaml", ".lock", "eval-test-last", "export", "explain"]
NAMES += ["summary.json", "train.log", "checkpoints", "checkpoints/last.pt"]
# All of them written by one command.
EVALUATION = ("results.json", "predictions.csv", "report.html")
NAMES += [" ".join(["calibration.json", *(f"eval-test-last/{name}" for name in EVALUATION)])]
COMMANDS = {
    "export": "vit-export ckpt=run format=torch",
    "explain": "vit-explain ckpt=run count=1",
}


@posix
@pytest.mark.parametrize(
    "name, kind",
    [
        *((name, "file") for name in NAMES),
        *((name, "folder") for name in ("eval-test-last", "checkpoints", "train.log", *COMMANDS)),
        *((name, "pipe") for name in ("config.yaml", "summary.json", "metrics.csv", "train.log")),
        *((name, "pipe") for name in ("checkpoints/last.pt", "eval-test-last/results.json")),
        (".lock", "pipe"),
    ],
)
def test_nothing_outside_a_strangers_run_is_touched(
    name: str, kind: str, run: Run, small_run: SmallRun
) -> None:
    """A run folder in which one name is a link out of it, or a pipe that nobody reads."""
    small_run("interrupted")
    outside = booby_trapped(name, kind)
    before = state_of(outside)
    usual = ["vit-eval ckpt=run", "vit-train resume=run train.max_minutes=1e-9"]
    said = ""
    for command in [COMMANDS[name]] if name in COMMANDS else usual:
        outcome = run(*command.split())
        assert outcome.status in (0, 1) and "Traceback" not in outcome.err, outcome.err
        said += outcome.out + outcome.err
    assert before == state_of(outside)
    for each in name.split():  # it was replaced or refused, not missed
        assert not Path("run", each).is_symlink() or f"run/{each}" in said, said


@posix
@pytest.mark.parametrize(
    "name, kind",
    [
        *((name, "file") for name in ("results.md", "results.png", "curves.png", "summary.json")),
        *((name, "pipe") for name in ("summary.json", "metrics.csv", "config.yaml", "results.md")),
    ],
)
def test_nor_by_gathering_it(name: str, kind: str, run: Run, small_run: SmallRun) -> None:
    small_run("finished")
    outside = booby_trapped(name, kind)
    before = state_of(outside)
    outcome = run("vit-results", "run")
    refused = name == "summary.json" or (name, kind) == ("results.md", "pipe")
    assert outcome.status == refused and "Traceback" not in outcome.err, outcome
    assert before == state_of(outside)


def booby_trapped(names: str, kind: str) -> Path:
    """Replace these names in the folder `run` by a link to a new folder or its file, or a pipe."""
    outside = Path("outside")
    outside.mkdir()
    shutil.copy("run/checkpoints/last.pt", outside)
    (outside / "events.out.tfevents.1").write_text("precious", encoding="utf-8")
    (outside / "calibration.json").write_text('{"temperatures": {}}', encoding="utf-8")
    for name in names.split():
        target = Path("run", name)
        target.parent.mkdir(exist_ok=True)
        shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(target)
        else:
            file = outside / (name if name == "calibration.json" else "last.pt")
            target.symlink_to((file if kind == "file" else outside).absolute())
    return outside


def state_of(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


def test_a_state_whose_counts_are_none_of_this_run_is_refused(
    run: Run, small_run: SmallRun
) -> None:
    path = small_run("interrupted") / "checkpoints/last.pt"
    content = read_checkpoint(path)
    moments = {n: {k: v[:1] if v.ndim else v for k, v in m.items()}
               for n, m in content["optimizers"][0]["state"].items()}  # fmt: skip
    changes: dict[str, Any] = {"epoch": 99, "batch": -1, "step": -5, "best": {"epoch": "x"}}
    changes |= {"best_score": "x", "seconds": "x", "whole": {"sums": None, "images": 0}}
    changes["optimizers"] = [content["optimizers"][0] | {"state": moments}]
    for key, value in changes.items():
        path.write_bytes(sealed(content | {key: value}))
        outcome = run("vit-train", "resume=run")
        assert outcome.status == 1 and "this checkpoint is not from this run" in outcome.err, key
        assert "Traceback" not in outcome.err
    content["optimizers"][0]["param_groups"] = [{"lr": "x"}]  # the settings are the config's
    path.write_bytes(sealed(content))
    assert run("vit-train", "resume=run", "train.max_minutes=null").status == 0


def test_an_image_of_a_million_patches_is_refused_whatever_computes_attention(run: Run) -> None:
    """Fused attention stores no matrix, and would take hours."""
    arguments = [*SMALL, "model.positions=none", "model.kernels=fused", "train.max_minutes=1e-9"]
    assert run("vit-train", *arguments, "hydra.run.dir=run").status == 0
    content = read_checkpoint(Path("run/checkpoints/last.pt"))
    content["image_shape"] = [3, 4096, 4096]
    Path("crafted.pt").write_bytes(sealed(content))
    outcome = run("vit-predict", "ckpt=crafted.pt", "images=x.png")
    assert outcome.status == 1 and "1,048,576 patches of 4, more than 32,768" in outcome.err
