"""A run from its settings to its summary; what it reports is computed here once more."""

import logging
import textwrap
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count as counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import SMALL, SMALL_MODEL, Run, SmallRun, csv_rows, measured
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import vit_train
from vit_train.base import log
from vit_train.base import machine as limits
from vit_train.base.reading import read_json
from vit_train.config.data import DATA_CONFIGS, ShapesConfig, TorchvisionConfig
from vit_train.config.model import ViTConfig
from vit_train.config.run import TrainConfig, with_defaults, with_settings
from vit_train.config.tasks import ClassifyConfig, ReconstructConfig, TaskConfig
from vit_train.config.training import AdamWConfig, LoopConfig
from vit_train.data.dataset import Dataset, load_dataset
from vit_train.data.shapes import load_shapes
from vit_train.data.splits import make_splits
from vit_train.loop import device, schedule
from vit_train.loop.distributed import ALONE, Processes
from vit_train.loop.metrics import wilson_interval
from vit_train.model.build import build
from vit_train.run import plan, start
from vit_train.run.data import training_batches
from vit_train.run.start import Run as Parts
from vit_train.run.start import resolve
from vit_train.run.terminal import opening
from vit_train.run.train import train
from vit_train.run.weights import freeze_encoder
from vit_train.tasks import count_flops
from vit_train.trained.checkpoint import Checkpoint

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
    recalls = [hits[part.labels == label].double().mean() for label in part.labels.unique()]
    top5 = (logits.topk(5).indices == part.labels.unsqueeze(1)).any(1)
    return {
        "count": len(part),
        "loss": pytest.approx(F.cross_entropy(logits, part.labels).item(), 1e-4),
        "acc": pytest.approx(hits.double().mean().item()),
        "top5": pytest.approx(top5.double().mean().item()),
        "balanced_acc": pytest.approx(torch.stack(recalls).mean().item()),
        "acc_interval_95": pytest.approx(wilson_interval(int(hits.sum()), len(part))),
    }


def part_of(content: dict[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    return {key: content[key] for key in keys}


def test_the_results_are_those_of_the_best_and_of_the_final_weights(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of epochs that are equally good the first one is the best: not the final one.
    monkeypatch.setattr(schedule, "score", lambda values, best_by: 0.5)
    run.succeeds("vit-train", *SMALL, "optim.lr=0.01", "train.ema_decay=0.9", "hydra.run.dir=run")
    checkpoints = [Path(f"run/checkpoints/{name}.safetensors") for name in ("best", "last")]
    summary = read_json(Path("run/summary.json"))
    best, final = (figures(path, "ema", "test") for path in checkpoints)
    results = summary["test"]
    assert part_of(results["best"], best) == best and part_of(results["final"], final) == final
    assert results["best"]["loss"] != results["final"]["loss"]

    rows = [{k: float(v) for k, v in row.items()} for row in csv_rows("run/metrics.csv")]
    values = ("loss", "acc", "top5", "balanced_acc")
    for row, path in zip(rows, checkpoints, strict=True):  # epoch 1 is the best
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
    _, meta = vit_train.load(checkpoints[1])
    assert (meta.epoch, meta.images_seen, meta.weights) == (2, 320, "ema")
    assert vit_train.load("run", image_size=48)[1].image_shape == (3, 48, 48)
    # What belongs to an epoch is written before its checkpoint, which knows of it.
    written = Checkpoint.load(checkpoints[1]).written
    assert written["metrics.csv"] == Path("run/metrics.csv").stat().st_size
    scalars = EventAccumulator("run").Reload()
    for tag, value in {
        "test/acc": results["final"]["acc"],
        "test/best/acc": results["best"]["acc"], "val/best_acc": best_val["acc"],
    }.items():  # fmt: skip
        assert [event.value for event in scalars.Scalars(tag)] == [pytest.approx(value)], tag

    raw = figures(checkpoints[0], "model", "val")
    for folder, result, facts, ckpt, *more in (
        ("test", best, ("ema", "test", 1, 160), checkpoints[0]),
        ("test-last", final, ("ema", "test", 2, 320), checkpoints[1]),
        ("val-raw", raw, ("raw", "val", 1, 160), "run", "weights=raw", "split=val"),
    ):
        run.succeeds("vit-eval", f"ckpt={ckpt}", f"out={folder}", *more)
        said = read_json(Path(folder, "results.json"))
        assert part_of(said["result"], result) == result and said["selected_on"] == "val"
        assert tuple(said[key] for key in ("weights", "split", "epoch", "images_seen")) == facts


def test_without_labels_the_best_has_the_lowest_loss(run: Run, small_run: SmallRun) -> None:
    small_run("reconstruct")
    summary = read_json(Path("run/summary.json"))
    losses = [float(row["val_loss"]) for row in csv_rows("run/metrics.csv")]
    assert summary["best_val"]["loss"] == min(losses) and summary["evaluated_weights"] == "raw"
    assert summary["best_val"]["epoch"] == 1 + losses.index(min(losses))
    run.succeeds("vit-eval", "ckpt=run", "precision=bf16", "out=bf16")
    assert read_json(Path("bf16/results.json"))["precision"] == "bf16"
    scalars = EventAccumulator("run").Reload()
    for tag, value in {
        "val/best_loss": min(losses),
        "test/loss": summary["test"]["final"]["loss"],
    }.items():
        assert scalars.Scalars(tag)[0].value == pytest.approx(value)


def test_python_has_the_bounds_of_the_command_line_and_trains_in_any_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    match = "seed=18446744073709551616 must be at least 0 and at most"
    with pytest.raises(ValueError, match=match):
        train(TrainConfig(seed=2**64), tmp_path / "refused")
    assert not (tmp_path / "refused").exists()
    model = ViTConfig(embed_dim=8, depth=1, num_heads=1, patch_size=16)
    data, loop = ShapesConfig(train_images=40, test_images=10), LoopConfig(epochs=1, batch_size=20)
    config = TrainConfig(model=model, data=data, train=loop, device="cpu")
    monkeypatch.setattr(log.logger, "level", logging.NOTSET)  # as in a program with its own logging
    copied: list[Any] = []
    monkeypatch.setattr(Processes, "copy_from_main", lambda self, model: copied.append(model))
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(train, config, tmp_path / "run").result()
    assert "top-1" in (tmp_path / "run/train.log").read_text(encoding="utf-8")
    assert outcome.exit_status == 0 and outcome.folder == tmp_path / "run" and len(copied) == 1
    best = outcome.summary["best_val"]
    assert outcome.score == best["acc"]  # which a sweeper gets
    assert [row["val_acc"] for row in outcome.metrics] == [best["acc"]]
    assert outcome.load().meta.path == tmp_path / "run/checkpoints/best.safetensors"


@dataclass
class FewShapes(ShapesConfig):
    train_images: int = 300
    test_images: int = 10


def test_training_in_python_is_as_the_package_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # as in a program without logging
    assert {*vit_train.__all__, "__version__"} <= set(dir(vit_train))
    example = vit_train.__doc__.partition("To train one:\n\n")[2]
    monkeypatch.chdir(tmp_path)
    # Time is up after the first step.
    monkeypatch.setattr("vit_train.run.train.math", SimpleNamespace(inf=0.0))
    with monkeypatch.context() as patch:
        patch.setitem(DATA_CONFIGS, "shapes", FewShapes)
        exec(textwrap.dedent(example.partition("\n\nThen")[0]))
    for text in (
        capsys.readouterr().out,
        Path("outputs/mine/train.log").read_text(encoding="utf-8"),
    ):
        assert "stopped after step 1" in text
    config = vit_train.load("outputs/mine/checkpoints/last.safetensors")[1].config
    assert (config.model.depth, config.task.name, config.data.name) == (4, "classify", "shapes")
    for change, folder, words in (
        ({}, "mine", "already contains a run: choose another folder, or resume"),
        (
            {"resume": "outputs/mine"},
            "other",
            "works only on the command line: vit-train resume=RUN",
        ),
        (
            {"extend": "outputs/mine"},
            "other",
            "works only on the command line: vit-train extend=RUN",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            vit_train.train(replace(config, **change), f"outputs/{folder}")


AUTO = ["model=cnn", "train.batch_size=32"]


@pytest.mark.parametrize(
    ("settings", "used", "best", "speedup"),
    [
        (["precision=fp32", *SMALL_MODEL], "fp32", "bf16", 1.9),
        (["precision=bf16", *SMALL_MODEL], "bf16", "fp32", 0.52),
        (AUTO, None, "bf16", 1.9),
        (AUTO, None, "fp32", 0.52),
    ],
)
def test_the_precision_is_as_set_or_the_fastest_and_the_speedup_is_noted(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    settings: list[str],
    used: str | None,
    best: str,
    speedup: float,
) -> None:
    few = [*SMALL[:2], *settings, "train.max_minutes=1e-9", "hydra.run.dir=run"]
    monkeypatch.setattr(device, "image_seconds", lambda *_: measured(speedup))
    outcome = run.says(f", {used or best} on cpu", "vit-train", *few)
    assert ("on cpu, less than a minute" in outcome.said) == (not used)
    summary = read_json(Path("run/summary.json"))
    assert summary["precision"] == (used or best)
    assert summary["bf16_speedup"] == (None if used else speedup)


def parts(
    seed: int = 0,
    task: TaskConfig | None = None,
    processes: Processes = ALONE,
    model: dict[str, Any] | None = None,
    **data: object,
) -> Parts:
    config = TrainConfig(
        model=ViTConfig(embed_dim=8, depth=1, num_heads=1, patch_size=8, **(model or {})),
        task=task or ClassifyConfig(),
        data=replace(ShapesConfig(train_images=60, test_images=20, image_size=16), **data),
        optim=AdamWConfig(),
        seed=seed,
    )
    return resolve(config, torch.device("cpu"), processes)


def test_the_expected_time_is_that_of_all_passes() -> None:
    """Of 54 training and 6 validation images in each epoch, and of two tests on 20."""
    run = parts()
    assert run.flops
    seconds, cores = run.precision.image_seconds, device.CORES
    epochs = run.config.train.num_epochs
    forward = (6 * epochs + 2 * 20) * run.flops.forward / run.flops.training
    trained = len(run.image_batches) * run.image_batches.batch_size * epochs
    assert run.expected_seconds == pytest.approx(seconds * (trained + forward) / cores)
    assert (
        replace(run, precision=replace(run.precision, image_seconds=None)).expected_seconds is None
    )


@pytest.mark.parametrize(
    "minutes, limit, words",
    [
        (0.9, None, "less than a minute"),
        (4.2, None, "about 4 minutes"),
        (4.2, 5, "about 4 minutes"),
        (150, 7, "at most 7 minutes"),
        (150, None, "about 2 hours"),
    ],
)
def test_the_expected_time_is_rounded_and_limited(
    minutes: float, limit: float | None, words: str
) -> None:
    run = parts()
    limited = replace(run.config.train, max_minutes=limit)
    run = replace(run, config=replace(run.config, train=limited))
    known = run.expected_seconds
    assert known and run.precision.image_seconds
    slower = run.precision.image_seconds * 60 * minutes / known
    slow = replace(run, precision=replace(run.precision, image_seconds=slower))
    assert f"on cpu, {words}" in opening(slow, Path("run"), "").replace("\n        ", " ")


@pytest.mark.parametrize("data", [{}, {"train_subset": 12}, {"val": "none"}])
def test_the_statistics_are_those_of_what_is_trained_on_alone(data: dict[str, object]) -> None:
    """Neither validation nor test images have a part in them."""
    run = parts(**data)
    pixels, test = (
        part.images.numpy() / 255 for part in (run.data.splits.train, run.data.splits.test)
    )
    assert len(pixels) == data.get("train_subset", 60 if data else 54)
    mean, std = pixels.mean((0, 2, 3), keepdims=True), pixels.std((0, 2, 3), keepdims=True)
    np.testing.assert_allclose(run.data.statistics.mean, mean.flatten(), rtol=1e-9)
    np.testing.assert_allclose(run.data.statistics.std, std.flatten(), rtol=1e-9)
    images, _ = next(iter(run.unaugmented(run.data.splits.test)))
    np.testing.assert_allclose(images, (test - mean) / std, rtol=0, atol=1e-5)


def test_arithmetic_is_not_counted_where_that_would_take_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counting keeps the attention of all layers, which fused kernels never store."""
    assert parts().flops is not None
    monkeypatch.setattr(start, "memory_bytes", lambda: 1000.0)
    small = parts()
    assert small.flops is None and small.training_tflop(100) is None


def test_arithmetic_is_counted_with_the_patches_that_are_left() -> None:
    """As for images of three patches, but the embedding of the fourth is computed before."""
    run = parts(model={"patch_dropout": 0.25, "patch_dropout_epochs": 2})
    epoch = len(run.train_loader) * run.train_loader.batch_size
    one, two, three = (run.training_tflop(number * epoch) for number in (1, 2, 3))
    narrow = count_flops(ClassifyConfig(), parts().config.model, (3, 8, 24), 10)
    embedding = 2 * 2 * (3 * 8 * 8) * 8  # forward, and the gradient of its weights
    assert one == pytest.approx(epoch * (narrow.training + embedding) / 1e12)
    assert two == pytest.approx(2 * one)
    assert three - two == pytest.approx(parts().training_tflop(epoch))


def test_arithmetic_with_a_decoder_is_counted_too() -> None:
    """The encoder of one patch of four, and the decoder of all four."""
    flops = parts(task=ReconstructConfig(decoder_depth=1)).flops
    n, t, d, p = 4, 2, 8, 3 * 8 * 8  # patches, tokens, width, pixels of a patch
    embedding, pixels = 2 * n * p * d, 2 * n * d * p
    encoder = 2 * t * d * (4 * d + 2 * 32) + 4 * t * t * d
    to_itself = 8 * n * d * d + 4 * n * n * d
    to_encoder = 4 * n * d * d + 4 * t * d * d + 4 * n * t * d
    decoder = to_itself + to_encoder + 4 * n * d * 32
    assert flops.forward == embedding + encoder + decoder + pixels
    assert 2 * flops.forward < flops.training < 3 * flops.forward


def test_the_start_says_what_the_best_epoch_is_chosen_by_unless_that_is_usual() -> None:
    words = [opening(parts(**data), Path("run"), "") for data in ({}, {"sampler": "balanced"})]
    assert ["balanced validation accuracy" in each for each in words] == [False, True]


def test_a_step_has_an_image_for_each_process() -> None:
    run = parts()
    assert training_batches(run.config, run.data, Processes(rank=0, count=54)).batch_size == 54
    with pytest.raises(ValueError, match=r"54 is smaller than the number of processes \(55\)"):
        parts(processes=Processes(rank=0, count=55))


def test_several_processes_agree_on_one_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the main process, also where another one's CPU is as fast in the other."""
    said: list[Any] = []

    class Several(Processes):
        def broadcast(self, content: Any) -> Any:
            said.append(content)
            return device.Precision("bf16", torch.device("cpu"))

    for rank, own in ((0, "bf16"), (1, "fp32")):
        monkeypatch.setattr(device, "image_seconds", lambda *_, r=rank: measured(2 - 1.5 * r))
        run = parts(processes=Several(rank, count=2))
        assert (run.precision.name, run.config.precision, said.pop().name) == ("bf16", "bf16", own)


def test_the_training_images_are_held_once() -> None:
    run = parts()
    (own,) = (value for value in vars(run.image_batches.cropper).values() if torch.is_tensor(value))
    assert own.data_ptr() == run.data.splits.train.images.data_ptr()


def test_the_images_that_were_split_are_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left are the parts, which are copies."""
    sources: list[weakref.ref[torch.Tensor]] = []

    def loaded(config: ShapesConfig) -> Dataset:
        data = load_shapes(config)
        sources.append(weakref.ref(data.train.images))
        return data

    monkeypatch.setattr(ShapesConfig, "builds", loaded)
    monkeypatch.setattr(start, "training_batches", lambda *_: pytest.fail(str(sources[0]())))
    with pytest.raises(pytest.fail.Exception, match="None"):
        parts()


def test_the_copy_of_a_split_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "memory_bytes", lambda: 2 * 80 * 3 * 16**2 - 1)
    with pytest.raises(ValueError, match="80 images of 16 by 16 pixels would take"):
        parts()


def test_a_frozen_encoder_gives_the_head_the_same_features_every_time() -> None:
    config = ViTConfig(embed_dim=8, depth=2, num_heads=1, patch_size=8, dropout=0.3, drop_path=0.3)
    config = replace(config, head="token_mlp")
    model = build(config, (3, 16, 16), 10).train()
    torch.nn.init.normal_(model.head.weight)
    images = torch.randn(4, 3, 16, 16)
    assert not torch.equal(*(model.encode(model.tokens(images))[0] for _ in range(2)))
    freeze_encoder(model, TrainConfig(model=config, init_from="RUN", seed=0))
    assert not torch.equal(model(images), model(images))  # of the head's own dropout
    model.pre_head = torch.nn.Identity()
    assert torch.equal(model(images), model(images))


def test_the_seed_draws_the_weights_and_the_order_but_not_the_splits() -> None:
    weights, orders, images = [], [], []
    for run in (parts(), parts(), parts(seed=1)):
        weights.append(torch.cat([each.flatten() for each in run.model.parameters()]).tolist())
        orders.append(torch.cat([labels for _, labels in run.train_loader.epoch(0)]).tolist())
        images.append(run.data.splits.train.images)
    assert weights[0] == weights[1] != weights[2] and orders[0] == orders[1] != orders[2]
    assert torch.equal(images[0], images[2])


@pytest.mark.parametrize("task, count", [(ReconstructConfig(), 84), (ClassifyConfig(), 54)])
def test_images_without_labels_are_trained_on_and_have_a_part_in_the_statistics(
    monkeypatch: pytest.MonkeyPatch, task: TaskConfig, count: int
) -> None:
    data = load_dataset(ShapesConfig(train_images=60, test_images=20, image_size=16))
    unlabeled = torch.full((30, 3, 16, 16), 250, dtype=torch.uint8)
    monkeypatch.setattr(ShapesConfig, "builds", lambda _: replace(data, unlabeled=unlabeled))
    run = parts(task=task)
    images = torch.cat((run.data.splits.train.images, unlabeled))[:count]
    assert torch.equal(run.data.train.images, images)
    assert (run.data.train.labels[54:] == -1).all()
    mean = (images / 255).double().mean((0, 2, 3))
    np.testing.assert_allclose(run.data.statistics.mean, mean, rtol=1e-6)


def test_a_run_says_if_a_tenth_of_the_images_is_left_out_of_an_epoch(run: Run) -> None:
    """As 33 of 97 images in batches of 64."""
    once = ["vit-train", "data.train_images=108", *SMALL[1:], "train.epochs=1"]
    words = "each epoch leaves out 33 of 97 training images"
    said = run.says(words, *once, "train.batch_size=64").said
    assert "train.batch_size=48 leaves out 1" in said
    assert words not in run.succeeds(*once, "train.batch_size=48").said


@pytest.mark.slow
def test_epochs_are_planned_for_a_time_and_nothing_else_changes(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = counter()
    monkeypatch.setattr("time.perf_counter", lambda: 0.01 * next(ticks))
    error = run.fails("is too short for one epoch", "vit-train", *SMALL, "train.minutes=1e-6").err
    assert "(about 0." in error and "data.test_subset" in error
    sweep = ["vit-train", "-m", "seed=0", *SMALL, "train.minutes=0.02", "hydra.sweep.dir=planned"]
    run.says("train.minutes=", *sweep)
    run.says("planned/0 is finished", *sweep)
    epochs = read_json(Path("planned/0/summary.json"))["epochs"]
    assert 2 <= epochs < 60 * 0.02 / (5 * 0.01)  # each step takes at least one tick
    run.succeeds("vit-train", *SMALL, f"train.epochs={epochs}", "hydra.run.dir=same")
    planned, same = (
        Checkpoint.load(Path(each, "checkpoints/last.safetensors"))
        for each in ("planned/0", "same")
    )
    torch.testing.assert_close(planned.model, same.model, rtol=0, atol=0)


def test_planned_epochs_leave_time_for_both_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step takes a second, and so does each evaluation in which the speed is measured."""
    run, clock = parts(test_images=540), counter()
    run = replace(run, config=with_settings(run.config, {"train.minutes": 5.0}))
    monkeypatch.setattr(plan, "seconds_per_step", lambda trainer, budget: 1.0)
    monkeypatch.setattr(plan, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    seconds, image_seconds = 60 * 5 * 0.95 - 3, 1 / len(run.data.train)  # the clock is read 4 times
    epoch_seconds = len(run.train_loader) + image_seconds * run.data.sizes["val"]
    expected = int((seconds - 2 * image_seconds * 540) / epoch_seconds)
    assert plan.planned(run).config.train.epochs == expected


def test_python_trains_as_the_same_settings_on_the_command_line_do(
    run: Run, small_run: SmallRun
) -> None:
    """Also what settings leave to the pretrained weights, whichever way they are given."""
    small_run("finished", "source")
    typed = ["init_from=source", "data.train_images=40", "data.test_images=10", "train.epochs=1"]
    run.succeeds("vit-train", *typed, "hydra.run.dir=typed")
    data = ShapesConfig(train_images=40, test_images=10)
    config = TrainConfig(init_from="source", data=data, train=LoopConfig(epochs=1))
    vit_train.train(config, "python")
    run.succeeds("vit-train", "config=typed", "hydra.run.dir=repeated")
    states = [
        Checkpoint.load(Path(folder, "checkpoints/last.safetensors"))
        for folder in ("typed", "python", "repeated")
    ]
    assert states[0].config["optim"]["lr"] == AdamWConfig.fine_tuning["lr"]
    for state in states[1:]:
        torch.testing.assert_close(state.model, states[0].model, rtol=0, atol=0)
        assert state.config | {"config": None} == states[0].config


def test_pretrained_weights_decide_only_what_is_open() -> None:
    config = with_defaults(TrainConfig())
    own = ViTConfig(embed_dim=16, mlp_dim=48)
    pretrained: Any = SimpleNamespace(
        config=own, image_size=48, layout="timm", state={}, statistics=None
    )
    assert "data.image_size" not in start.fine_tuning(config, pretrained)  # of images of one size
    assert start.fine_tuning(replace(config, data=TorchvisionConfig()), pretrained) == {
        **start.fine_tuning(config, pretrained),
        "data.image_size": 48,
    }
    assert start.fine_tuning(config, pretrained)["train.epochs"] == 20
    timed = with_settings(config, {"train.minutes": 1.0})
    assert "train.epochs" not in start.fine_tuning(timed, pretrained)
    assert start.with_pretrained(config, pretrained).model.mlp_dim == 48
    narrow = with_settings(config, {"model.mlp_ratio": 2.0})
    assert start.with_pretrained(narrow, pretrained).model.mlp_dim is None
