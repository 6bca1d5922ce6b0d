"""Files that were damaged, or made to do harm: refused with a short message, and nothing done."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import forge, rewrite
from conftest import SMALL, Run, SmallRun, write_images
from torch import Tensor

import vit_train
from vit_train.base import machine as limits
from vit_train.base.reading import read_json
from vit_train.base.writing import write_json
from vit_train.config.model import CnnConfig
from vit_train.loop.state import AveragesState, RandomState
from vit_train.model.build import build, forward_bytes, require_model_fits
from vit_train.model.vit import VisionTransformer
from vit_train.trained import model as trained
from vit_train.trained.checkpoint import Checkpoint

VALUES = [
    *(None, -1, 0, 10**12, 0.5, float("nan"), "", "x", [], [1], {}, {"name": "os.system"}),
    *({"tensor": "model.norm.weight"}, {"tensor": "nowhere"}, True),
]


def places(content: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Where a checkpoint's plain values can be changed: objects, and the keys in them."""
    inside = [value for value in content.values() if isinstance(value, dict)]
    return [(content, key) for key in content] + [each for one in inside for each in places(one)]


def test_an_intact_file_with_other_contents_is_refused_or_does_no_harm(
    checkpoint: bytes, tmp_path: Path
) -> None:
    """It may hold anything: 40 of them, and no error but a ValueError."""
    path, rng, refused = tmp_path / "crafted.safetensors", random.Random(0), 0

    def change(content: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        inner, key = rng.choice(places(content))
        inner[key] = rng.choice(VALUES)
        if rng.random() < 0.2:
            del inner[key]

    for _ in range(40):
        path.write_bytes(checkpoint)
        forge(path, change)
        try:
            vit_train.load(path)
        except ValueError as error:
            assert len(str(error)) < 600
            refused += 1
    assert refused > 20


WRONG: tuple[dict[str, Any], ...] = (
    {"optimizers": [[]]}, {"model": {"x": torch.zeros(1)}}, {"epoch": 99},
    {"epoch_averages": AveragesState(torch.zeros(9), 0, 0.0)},
    {"optimizers": [[{"step": torch.zeros(1)} for _ in range(29)]]},
    {"random": RandomState(torch.zeros(9), [])}, {"batch": 99},
)  # fmt: skip


def test_a_crafted_state_cannot_be_resumed(run: Run, small_run: SmallRun) -> None:
    path = small_run("interrupted") / "checkpoints/last.safetensors"
    kept = path.read_bytes()
    for change in WRONG:
        path.write_bytes(kept)
        rewrite(path, **change)
        run.fails("cannot use this checkpoint for resume=", "vit-train", "resume=run")
    for key, value in {"seconds": "x", "best": {"epoch": "x"}}.items():
        path.write_bytes(kept)
        forge(path, lambda content, tensors, key=key, value=value: content.update({key: value}))
        run.fails(key, "vit-train", "resume=run")


def crafted(checkpoint: bytes, change: Callable[[dict[str, Any], dict[str, Tensor]], Any]) -> None:
    """Write an intact checkpoint with this change."""
    Path("crafted.pt").write_bytes(checkpoint)
    forge(Path("crafted.pt"), change)


# Of the checkpoint's JSON: the way to a value, the value, and words of the refusal.
HARMFUL: dict[str, tuple[str, Any, str]] = {
    "depth": ("config.model.depth", 10**9, "vit-eval: "),
    "width": ("config.model.embed_dim", 2**20, "vit-eval: "),
    "MLP": ("config.model.mlp_dim", 2**40, "vit-eval: "),
    "patches": ("config.model.patch_size", 1, "vit-eval: "),
    "eval": ("config.model.name", "builtins.eval", "vit-eval: "),
    "a target": ("config.model._target_", "os.system", "vit-eval: "),
    "code": ("config.model.kernels", "__import__('os')", "vit-eval: "),
    "the environment": ("config.data.root", "${oc.env:SECRET}", "an interpolation"),
    "normalized by zero": ("std", [0.0, 0.0, 0.0], "each std must be positive"),
    "normalized by words": ("mean", ["x", "y", "z"], "mean[0] must be of type float"),
    "one color": ("image_shape", [1, 32, 32], "image_shape is [1, 32, 32]"),
    "no shape": ("image_shape", [3], "image_shape is [3]"),
    "a negative size": ("image_shape", [3, -32, -32], "image_shape is [3, -32, -32]"),
    "no number": ("epoch", True, "epoch must be of type int, not bool"),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_a_small_file_takes_neither_memory_nor_time_and_runs_no_code(
    name: str, checkpoint: bytes, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    way, value, words = HARMFUL[name]

    def change(content: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        *keys, last = way.split(".")
        for key in keys:
            content = content[key]
        content[last] = value

    crafted(checkpoint, change)
    outcome = run.fails(words, "vit-eval", "ckpt=crafted.pt")
    assert "hunter2" not in outcome.err and outcome.err.count("\n") <= 8


@pytest.mark.parametrize(
    ("positions", "size", "words"),
    [
        # Relative positions keep a table of N×N distances; its weights are 2N − 1 short vectors.
        ("relative", 640, "with images of 640 by 640 pixels, would take"),
        # Fused attention stores no matrix, and would take hours.
        ("none", 4096, "more than 32,768 patches of 4"),
    ],
)
def test_an_image_size_that_the_file_makes_up_is_refused(
    run: Run, positions: str, size: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "memory_bytes", lambda: 3e10)
    begin = [*SMALL, f"model.positions={positions}", "model.kernels=fused", "hydra.run.dir=run"]
    run.succeeds("vit-train", *begin, "train.max_minutes=1e-9")
    path = Path("run/checkpoints/last.safetensors")
    model, length = Checkpoint.load(path).model, 2 * (size // 4) ** 2 - 1
    tables = [name for name, value in model.items() if value.shape == (127, 4)]
    model |= {name: torch.zeros(length, 4) for name in tables}
    rewrite(path, image_shape=(3, size, size), model=model)
    run.fails(words, "vit-eval", f"ckpt={path}")


def test_one_image_may_not_take_more_than_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the weights of a CNN nor its patches grow with its images."""
    monkeypatch.setattr(limits, "memory_bytes", lambda: 1e12)
    config = CnnConfig()
    model = build(config, (3, 32, 32), 10)
    with pytest.raises(
        ValueError, match=r"images of 60,000 by 60,000 pixels, .*5,627 GB of memory"
    ):
        require_model_fits(config, model, (3, 60_000, 60_000))


def test_batches_follow_the_memory_of_the_machine(
    checkpoint: bytes, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch needs many times the memory of one image."""
    Path("crafted.pt").write_bytes(checkpoint)
    loaded, batches, forward = vit_train.load("crafted.pt"), [], VisionTransformer.forward

    def counted(self: VisionTransformer, images: torch.Tensor, *a: bool, **how: bool) -> Any:
        batches.append(len(images))
        return forward(self, images, *a, **how)

    assert loaded.at_once > 256
    run.succeeds("vit-eval", "ckpt=crafted.pt", "out=large")
    each = forward_bytes(loaded.meta.config.model, loaded.meta.image_shape)
    monkeypatch.setattr(trained, "memory_bytes", lambda: 4 * 3.5 * each)
    monkeypatch.setattr(VisionTransformer, "forward", counted)
    run.succeeds("vit-eval", "ckpt=crafted.pt", "out=small")
    large, small = (read_json(Path(name, "results.json"))["result"] for name in ("large", "small"))
    assert small["acc"] == large["acc"] and small["loss"] == pytest.approx(large["loss"], abs=1e-5)
    assert max(batches) == 3


# A command, and contents of a file that it reads.
DAMAGED = {
    "summary.json": ("vit-results run", b'{"status": ', b"\xff\0", b'{"status": "finished"}'),
    "metrics.csv": ("vit-results run", b"epoch,loss\n1", b"\xff\0", b"images_seen\nx\n"),
    "requested.yaml": ("vit-train config=run", b"model: {", b"\xff\0", b"[1, 2]", b"a: !!bool x"),
    "checkpoints/best.safetensors": ("vit-eval ckpt=run", b"", b"\xff\0" * 99, b"[1, 2]"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_of_a_run_is_named_in_one_line(
    name: str, run: Run, small_run: SmallRun
) -> None:
    path = small_run("finished") / name
    command, *contents = DAMAGED[name]
    for content in (*contents, path.read_bytes()[:-9]):
        path.write_bytes(content)
        outcome = run.fails(f"run/{name}", *command.split())
        assert outcome.err.count("\n") == 1, outcome.err


def test_weights_with_nan_are_reported_and_nothing_is_written(checkpoint: bytes, run: Run) -> None:
    crafted(checkpoint, lambda content, tensors: [
        weight.fill_(float("nan")) for name, weight in tensors.items() if name.startswith("model.")
    ])  # fmt: skip
    run.fails("the weights are damaged, or the training", "vit-eval", "ckpt=crafted.pt")
    write_images(".", ["photo.png"])
    for command in ("vit-explain", "vit-predict"):
        chosen = ["ckpt=crafted.pt", "images=photo.png"]
        run.fails(
            "outputs contain NaN or infinity, so its weights must be damaged", command, *chosen
        )
    assert not list(Path().glob("eval-*"))


def test_numbers_that_are_none_become_null(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": [float("nan"), {"b": float("-inf")}], "c": (1, 0.5)})
    assert read_json(tmp_path / "x.json") == {
        "a": [None, {"b": None}],
        "c": [1, 0.5],
    }
