"""A finished run is trained further in a new folder, and a run stops early when it may."""

import hashlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import rewrite
from conftest import SMALL_MODEL, Run, SmallRun
from test_resume import Killed, assert_same_run, dies_after, rows, scalars

from vit_train.base.reading import read_json
from vit_train.commands.resuming import may_change
from vit_train.runs.checkpoint import Checkpoint, Extended
from vit_train.runs.config import TrainConfig, with_defaults
from vit_train.training.checkpoints import recipe

MORE = ["train.epochs=2", "optim.lr=5e-4", "checkpoint.every_steps=3"]


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def summary(folder: str) -> dict[str, Any]:
    content: dict[str, Any] = read_json(Path(folder, "summary.json"))
    return content


def test_a_finished_run_is_extended_and_stays_as_it_was(
    run: Run, small_run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = small_run("averaged", "runs/first")
    before = digests(first)
    outcome = run.succeeds("vit-train", "extend=runs", *MORE, "hydra.run.dir=runs/second")
    assert "from    extends runs/first after epoch 2" in outcome.out and "   4/4   " in outcome.out
    # All of its state: the moments, the average and the counters go on.
    state = Checkpoint.load(Path("runs/second/checkpoints/last.safetensors"))
    assert state.optimizers[0][0]["step"] == 20 and state.step == 20
    assert state.ema is not None and state.images_seen == 640
    table = rows(Path("runs/second"))
    assert table[:2] == rows(first) and [row["epoch"] for row in table] == ["1", "2", "3", "4"]
    assert [step for step, _ in scalars(Path("runs/second"))["loss/val"]] == [15, 20]
    assert float(table[2]["lr"]) == 5e-4  # at the end of one epoch of warm-up
    said = summary("runs/second")
    last = first / "checkpoints/last.safetensors"
    (noted,) = said["extends"]
    seal = Checkpoint.load(last).checksum
    assert (noted["run"], noted["epochs"], noted["images_seen"]) == ("runs/first", 2, 320)
    assert noted["fingerprint"] == seal and said["images_seen"] == 640 and said["epochs"] == 4
    assert said["best_val"]["epoch"] in (3, 4)

    # Killed before its first checkpoint, then stopped after a step: the same bits in the end.
    with monkeypatch.context() as patch, pytest.raises(Killed):
        dies_after(0, patch)
        run("vit-train", "extend=runs/first", *MORE, "hydra.run.dir=killed")
    for limit in ("1e-9", "null"):
        run.succeeds("vit-train", "resume=killed", f"train.max_minutes={limit}")
        if limit != "null":  # a step away from where the first run ended
            weights = Checkpoint.load(Path("killed/checkpoints/last.safetensors")).model
            for name, weight in Checkpoint.load(last).model.items():
                torch.testing.assert_close(weights[name], weight, rtol=0, atol=2e-4)
    assert_same_run(Path("runs/second"), Path("killed"))
    assert summary("killed")["extends"][0]["fingerprint"] == seal

    # And further, beside the run that is extended, with the settings that it has.
    more = ["train.epochs=6", "train.max_minutes=1e-9"]
    run.succeeds("vit-train", "extend=runs/second", *more)
    (third,) = (path for path in Path("outputs/second-extended").iterdir())
    again = summary(str(third))
    assert [each["epochs"] for each in again["extends"]] == [2, 4] and again["steps"] == 21
    assert again["config"]["optim"]["lr"] == 5e-4 and again["config"]["train"]["epochs"] == 6
    assert again["config"]["optim"]["warmup_epochs"] == 3
    assert digests(first) == before


def test_what_cannot_be_extended_is_refused(run: Run, small_run: SmallRun) -> None:
    small_run("interrupted", "my runs/half done")
    last = small_run("finished") / "checkpoints/last.safetensors"
    Path("no run").mkdir()
    more = ["train.epochs=2", "hydra.run.dir=new"]
    for words, *arguments in (
        ("extend=run needs train.epochs=N, how many more", "extend=run", more[1]),
        ("extend=nowhere: there is no such folder", "extend=nowhere", *more),
        ("finish it with vit-train resume='my runs/half", "extend=my runs/half done", *more),
        ("none of the runs in my runs is finished", "extend=my runs", *more),
        ("extend=no run: there is no run in no run", "extend=no run", *more),
        ("init_from=builtin:cifar10 starts from its", "extend=builtin:cifar10", *more),
        ("cannot change data when extending (this run has", "extend=run", "data=cifar10", *more),
    ):
        run.fails(words, "vit-train", *arguments)
    kept = last.read_bytes()
    changes: list[tuple[dict[str, Any], str]] = [
        ({"fingerprint": "0"}, "the images on disk are not those it was trained on"),
        ({"batch": 3}, "its last checkpoint is not from the end of an epoch"),
    ]
    for change, words in changes:
        last.write_bytes(kept)
        rewrite(last, **change)
        run.fails(words, "vit-train", "extend=run", *more)
    assert not Path("new").exists()


def test_what_may_change_when_a_run_is_extended() -> None:
    may = "optim.lr optim.weight_decay train.patience augment augment.policy task.label_smoothing"
    may_not = "optim.name train.ema_decay train.batch_size data.train_subset model.depth seed task"
    assert all(may_change(key, "extend") for key in may.split())
    assert not any(may_change(key, "extend") for key in may_not.split())
    assert not any(may_change(key, "resume") for key in f"{may} {may_not}".split())
    always = "train.micro_batch train.max_minutes train.log_every data.root device checkpoint.keep"
    assert all(may_change(key, "resume") for key in always.split())


def test_a_run_stops_early_when_validation_no_longer_improves(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Weights that stay as they are: no epoch is better than the first.
    few = [*SMALL_MODEL, "data.train_images=60", "data.test_images=20", "checkpoint.every_steps=1"]
    still = [*few, "optim.lr=1e-30", "train.epochs=9", "train.patience=1"]
    outcome = run.succeeds("vit-train", *still, "hydra.run.dir=whole")
    assert "stopped early after epoch 2: no better epoch in the last 1" in outcome.out
    said = summary("whole")
    assert said["status"] == "finished" and said["stopped_early"] and said["epochs"] == 2
    with monkeypatch.context() as patch, pytest.raises(Killed):
        dies_after(3, patch)  # one after each step, the best one, and one after its epoch
        run("vit-train", *still, "hydra.run.dir=killed")
    run.succeeds("vit-train", "resume=killed")
    assert_same_run(Path("whole"), Path("killed"))


def test_a_recipe_is_all_that_repetitions_share() -> None:
    """Settings that a version does not know yet are at their defaults."""
    config = asdict(with_defaults(TrainConfig()))
    one = recipe(config, [])
    assert recipe(config | {"seed": 7, "device": "cpu"}, []) == one
    older = config | {"train": {k: v for k, v in config["train"].items() if k != "patience"}}
    assert recipe(older, []) == one
    other = config | {"model": config["model"] | {"depth": 5}}
    assert recipe(other, []) != one
    earlier = Extended("run", 30, 300, 300, 1.0, "", recipe=one)
    other = replace(earlier, recipe="another")
    assert one != recipe(config, [earlier]) != recipe(config, [other])
