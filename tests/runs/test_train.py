"""What a run reports is what its weights do to its images, computed here once more."""

import logging
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import SMALL, Run, SmallRun, csv_rows
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import vit_train
from vit_train.base.reading import read_json
from vit_train.data.config import ShapesConfig
from vit_train.data.dataset import make_splits
from vit_train.data.sources import load_dataset
from vit_train.engine.config import LoopConfig
from vit_train.engine.metrics import Classification, wilson_interval
from vit_train.model.config import ViTConfig
from vit_train.runs.checkpoint import Checkpoint
from vit_train.runs.config import TrainConfig
from vit_train.tasks.config import ClassifyConfig
from vit_train.training.train import Deadline, train

DATA = ShapesConfig(train_images=200, test_images=60)


def figures(checkpoint: Path, weights: str, split: str) -> dict[str, Any]:
    """Of these weights on this split, without anything of the package but the model's forward."""
    model, _ = vit_train.load(checkpoint)
    model.load_state_dict(getattr(Checkpoint.load(checkpoint), weights))
    splits = make_splits(load_dataset(DATA), DATA)
    train, part = splits.train.images / 255, splits.named(split)
    mean, std = (getattr(train, name)((0, 2, 3)).view(-1, 1, 1) for name in ("mean", "std"))
    with torch.no_grad():
        logits = model((part.images / 255 - mean) / std)
    hits = logits.argmax(1) == part.labels
    right = int(hits.sum())
    recalls = [hits[part.labels == label].double().mean() for label in part.labels.unique()]
    top5 = (logits.topk(5).indices == part.labels.unsqueeze(1)).any(1)
    approx = pytest.approx
    return {
        "count": len(part),
        "loss": approx(F.cross_entropy(logits, part.labels).item(), 1e-4),
        "acc": approx(right / len(part)),
        "top5": approx(top5.double().mean().item()),
        "balanced_acc": approx(torch.stack(recalls).mean().item()),
        "acc_interval_95": approx(wilson_interval(right, len(part))),
    }


def part_of(content: dict[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    return {key: content[key] for key in keys}


def test_the_results_are_those_of_the_best_and_of_the_final_weights(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of epochs that are equally good the first one is the best: not the final one.
    monkeypatch.setattr(Classification, "score", 0.5)
    settings = ["optim.lr=0.01", "train.ema_decay=0.9", "hydra.run.dir=run"]
    outcome = run("vit-train", *SMALL, *settings)
    assert outcome.status == 0, outcome.err
    checkpoints = {name: Path(f"run/checkpoints/{name}.safetensors") for name in ("best", "last")}
    summary = read_json(Path("run/summary.json"))
    best, final = (figures(path, "ema", "test") for path in checkpoints.values())
    results = summary["test"]
    assert part_of(results["best"], best) == best and part_of(results["final"], final) == final
    assert results["best"]["loss"] != results["final"]["loss"]

    rows = [{k: float(v) for k, v in row.items()} for row in csv_rows("run/metrics.csv")]
    values = ("loss", "acc", "top5", "balanced_acc")
    for row, path in zip(rows, checkpoints.values(), strict=True):  # epoch 1 is the best
        expected = part_of(figures(path, "ema", "val"), dict.fromkeys(values))
        assert {name: row[f"val_{name}"] for name in values} == expected
    best_val = {name: rows[0][f"val_{name}"] for name in values}
    expected_summary = {
        "status": "finished", "epochs": 2, "steps": 10, "images_seen": 320, "steps_left_out": 0,
        "evaluated_weights": "ema", "selected_on": "val",
        "precision": "fp32", "best_val": {"epoch": 1, **best_val},
        "images": {"train": 180, "val": 20, "test": 60},
    }  # fmt: skip
    assert part_of(summary, expected_summary) == expected_summary
    assert summary["seconds"] >= rows[-1]["seconds"] > 0
    _, meta = vit_train.load("run/checkpoints/last.safetensors")
    assert (meta.epoch, meta.step, meta.images_seen, meta.weights) == (2, 10, 320, "ema")
    assert vit_train.load("run", image_size=48)[1].image_shape == (3, 48, 48)
    # What belongs to an epoch is written before its checkpoint, which knows of it.
    written = Checkpoint.load(checkpoints["last"]).written
    assert written["metrics.csv"] == Path("run/metrics.csv").stat().st_size
    scalars = EventAccumulator("run").Reload()
    for tag, value in {
        "test/acc": results["final"]["acc"],
        "test/best/acc": results["best"]["acc"], "val/best_acc": best_val["acc"],
    }.items():  # fmt: skip
        assert [event.value for event in scalars.Scalars(tag)] == [pytest.approx(value)], tag

    for name, result, epoch in (("best", best, 1), ("last", final, 2)):
        outcome = run("vit-eval", f"ckpt=run/checkpoints/{name}.safetensors")
        assert outcome.status == 0, outcome.err
        folder = {"best": "eval-test", "last": "eval-test-last"}[name]
        said = read_json(Path("run", folder, "results.json"))
        assert part_of(said["result"], result) == result
        assert (said["epoch"], said["images_seen"], said["split"]) == (epoch, 160 * epoch, "test")
        assert (said["weights"], said["selected_on"]) == ("ema", "val")
    assert run("vit-eval", "ckpt=run", "weights=raw", "split=val").status == 0
    said = read_json(Path("run/eval-val-raw/results.json"))
    raw = figures(checkpoints["best"], "model", "val")
    assert part_of(said["result"], raw) == raw and said["weights"] == "raw"


def test_without_labels_the_best_has_the_lowest_loss(run: Run, small_run: SmallRun) -> None:
    small_run("reconstruct")
    summary = read_json(Path("run/summary.json"))
    losses = [float(row["val_loss"]) for row in csv_rows("run/metrics.csv")]
    assert summary["best_val"]["loss"] == min(losses) and summary["evaluated_weights"] == "raw"
    assert summary["best_val"]["epoch"] == 1 + losses.index(min(losses))
    assert run("vit-eval", "ckpt=run", "precision=bf16").status == 0
    said = read_json(Path("run/eval-test-bf16/results.json"))
    assert said["precision"] == "bf16"
    scalars = EventAccumulator("run").Reload()
    for tag, value in {
        "val/best_loss": min(losses),
        "test/loss": summary["test"]["final"]["loss"],
    }.items():
        assert scalars.Scalars(tag)[0].value == pytest.approx(value)


def test_a_sweeper_gets_the_best_score_of_validation(tmp_path: Path) -> None:
    model = ViTConfig(embed_dim=8, depth=1, num_heads=1, patch_size=8)
    data = ShapesConfig(train_images=40, test_images=10)
    loop = LoopConfig(epochs=1, batch_size=20)
    config = TrainConfig(model=model, task=ClassifyConfig(), data=data, train=loop, device="cpu")
    outcome = train(config, tmp_path)
    summary = read_json(tmp_path / "summary.json")
    assert (outcome.exit_status, outcome.score) == (0, summary["best_val"]["acc"])


def test_python_has_the_bounds_of_the_command_line_and_trains_in_any_thread(
    tmp_path: Path,
) -> None:
    match = "seed=18446744073709551616 must be at least 0 and at most"
    with pytest.raises(ValueError, match=match):
        train(TrainConfig(seed=2**64), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    model = ViTConfig(embed_dim=8, depth=1, num_heads=1, patch_size=16)
    data, loop = ShapesConfig(train_images=40, test_images=10), LoopConfig(epochs=1)
    config = TrainConfig(model=model, data=data, train=loop, device="cpu")
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(train, config, tmp_path / "run").result()
    assert outcome.exit_status == 0 and outcome.folder == tmp_path / "run"
    assert (outcome.folder / "summary.json").exists()


def test_training_in_python_is_as_the_package_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as in a program without logging
    assert {*vit_train.__all__, "__version__"} <= set(dir(vit_train))
    example = vit_train.__doc__.partition("To train one:\n\n")[2]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vit_train.training.train.Deadline", lambda *_: Deadline(0.0, 0.0))
    with monkeypatch.context() as patch:
        few = partial(ShapesConfig, train_images=300, test_images=10)
        patch.setattr("vit_train.runs.config.ShapesConfig", few)
        exec(textwrap.dedent(example))
    shown = capsys.readouterr().out
    assert "stopped after step 1" in shown
    assert "stopped after step 1" in Path("outputs/mine/train.log").read_text(encoding="utf-8")
    config = vit_train.load("outputs/mine/checkpoints/last.safetensors")[1].config
    assert (config.model.depth, config.task.name, config.data.name) == (4, "classify", "shapes")
    with pytest.raises(ValueError, match="already holds a run: choose another folder, or resume"):
        vit_train.train(config, "outputs/mine")
    with pytest.raises(ValueError, match="is for the command: vit-train resume=RUN"):
        vit_train.train(replace(config, resume="outputs/mine"), "outputs/other")
    with pytest.raises(ValueError, match="is for the command: vit-train extend=RUN"):
        vit_train.train(replace(config, extend="outputs/mine"), "outputs/other")
