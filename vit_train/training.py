"""`vit-train` after its arguments are accepted: assemble the parts, run, report."""

import contextlib
import logging
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from vit_train.config import TrainConfig, as_dict
from vit_train.contact_sheet import label_title
from vit_train.data.batches import EvalBatches, Normalise, TrainBatches
from vit_train.data.dataset import Dataset, ImageSet, channel_statistics
from vit_train.data.sources import load_dataset
from vit_train.data.splits import make_splits
from vit_train.engine.checkpoint import CheckpointKeeper
from vit_train.engine.compiling import compile_model
from vit_train.engine.device import be_deterministic, keep_freed_memory, pick_device, pick_precision
from vit_train.engine.metrics import Evaluation
from vit_train.engine.trainer import NonFiniteLoss, Trainer
from vit_train.model.registry import build_model
from vit_train.report import provenance
from vit_train.report.metrics_csv import MetricsCsv
from vit_train.report.summary import result_dict, write_json
from vit_train.report.tensorboard import TensorBoard
from vit_train.report.terminal import Terminal, accuracy_line, parameter_breakdown
from vit_train.trained import about_run, load

logger = logging.getLogger(__name__)


def train(config: TrainConfig, folder: Path) -> bool:
    """Train as the config says and leave everything in `folder`; False if stopped before the end.

    Raises ValueError for what the user can mend, NonFiniteLoss if training diverges.
    """
    if (folder / "checkpoints").exists():
        raise ValueError(f"{folder} already holds a run: choose another hydra.run.dir")
    started = time.perf_counter()
    keep_freed_memory()
    device = pick_device(config.device)
    precision = pick_precision(config.precision, device)
    if config.deterministic and device.type != "cpu":
        be_deterministic()
    torch.manual_seed(config.seed)

    data = load_dataset(config.data)
    splits = make_splits(data, config.data)
    model = build_model(config.model, data.image_shape, len(data.classes)).to(device)

    statistics = channel_statistics(splits.train.images)
    normalise = Normalise(statistics, device)
    loop = config.train
    batches = TrainBatches(
        splits.train,
        len(data.classes),
        normalise,
        config.augment,
        loop.batch_size,
        config.seed,
        device,
    )

    def unaugmented(part: ImageSet) -> EvalBatches:
        return EvalBatches(part, normalise, loop.eval_batch_size, device)

    val = None if splits.val is None else unaugmented(splits.val)

    settings = as_dict(config)
    keeper = CheckpointKeeper(
        folder / "checkpoints", about_run(settings, data, statistics, provenance.versions())
    )
    board = TensorBoard(folder)
    terminal = Terminal(len(batches), loop.epochs)
    observers = [keeper, board, MetricsCsv(folder / "metrics.csv"), terminal]
    trainer = Trainer(
        model,
        batches,
        val,
        config.optim,
        loop,
        precision,
        observers,
        config.seed,
        config.compile,
    )

    if config.compile:
        images, targets = (each[: trainer.lanes.piece] for each in next(batches.epoch(0)))
        with trainer.lanes:  # compiled code is bound to a number of threads
            compile_model(model, images, targets, precision)

    text = OmegaConf.to_yaml(OmegaConf.create(settings))
    (folder / "config.yaml").write_text(text)
    board.config(text)
    board.images(*sample(batches, data))
    _, size, _ = data.image_shape
    sizes = {"train": len(splits.train), "val": len(splits.val or []), "test": len(splits.test)}
    logger.info(
        f"{parameter_breakdown(model)}\n"
        f"{config.data.name}: {sizes['train']:,} training, {sizes['val']:,} validation, "
        f"{sizes['test']:,} test images, {size} by {size}, {len(data.classes)} classes\n"
        f"{precision.name} on {device.type}, run folder: {folder}"
    )
    summary: dict[str, Any] = {
        "status": "running",
        "command": provenance.command_line(),
        "commit": provenance.commit(),
        "versions": provenance.versions(),
        "machine": provenance.machine(device),
        "precision": precision.name,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "images": sizes,
        "config": settings,
    }
    write_json(folder / "summary.json", summary)
    try:
        with terminal, stop_on_interrupt(trainer):
            trainer.fit()
    except NonFiniteLoss:
        write_json(folder / "summary.json", summary | {"status": "diverged"})
        raise

    results = (
        test_results(trainer, keeper, unaugmented(splits.test), config, device)
        if trainer.finished
        else {}
    )
    for name, result in results.items():
        board.evaluation(f"test/{name}" if name != "final" else "test", result, trainer.step)
        logger.info(f"test, {name} weights{selection_note(config)}: {accuracy_line(result)}")
    summary |= {
        "status": "finished" if trainer.finished else "interrupted",
        "epochs": trainer.epoch,
        "steps": trainer.step,
        "images_seen": trainer.images_seen,
        "evaluated_weights": "ema" if trainer.ema else "raw",
        "best_val": {"acc": keeper.best_acc, "epoch": keeper.best_epoch} if val else None,
        "selected_on": {"split": "val", "test": "test", "none": None}[config.data.val],
        "test": {name: result_dict(result) for name, result in results.items()},
        "seconds": round(time.perf_counter() - started, 1),
    }
    write_json(folder / "summary.json", summary)
    board.close(settings, final_metrics(results, keeper if val else None))
    return trainer.finished


def test_results(
    trainer: Trainer,
    keeper: CheckpointKeeper,
    batches: EvalBatches,
    config: TrainConfig,
    device: torch.device,
) -> dict[str, Evaluation]:
    """The one time the test set is read: the final weights and, with validation, the best."""
    with trainer.lanes:
        results = {"final": trainer.evaluate(trainer.eval_model, batches)}
        if keeper.best_epoch == trainer.epoch:
            results["best"] = results["final"]
        elif keeper.best.exists():
            model, _ = load(keeper.best, device)
            results["best"] = trainer.evaluate(model, batches)
    return results


def final_metrics(
    results: dict[str, Evaluation], keeper: CheckpointKeeper | None
) -> dict[str, float]:
    metrics = {f"test_acc_{name}": result.acc for name, result in results.items()}
    if keeper:
        metrics["best_val_acc"] = keeper.best_acc
    return metrics


def selection_note(config: TrainConfig) -> str:
    return " (selected on test)" if config.data.val == "test" else ""


def sample(batches: TrainBatches, data: Dataset, count: int = 18) -> tuple[Tensor, list[str]]:
    """The first images of epoch 0 as augmented, uint8 again, with their labels in words."""
    pixels, targets = next(batches.epoch(0))
    titles = [label_title(target, data.classes) for target in targets[:count]]
    return batches.normalise.undo(pixels[:count]), titles


@contextlib.contextmanager
def stop_on_interrupt(trainer: Trainer) -> Iterator[None]:
    """Ctrl-C ends the run after the current step; a second one ends it at once."""

    def request(number: int, frame: Any) -> None:
        trainer.stop_requested = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    previous = signal.signal(signal.SIGINT, request)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
