"""`vit-train` after its arguments are accepted: assemble the parts, run, report."""

import contextlib
import logging
import signal
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from vit_train.config import TrainConfig, as_dict
from vit_train.contact_sheet import label_title
from vit_train.data.batches import Batch, EvalBatches, Normalise, TrainBatches
from vit_train.data.dataset import Dataset, ImageSet, channel_statistics
from vit_train.data.sources import load_dataset
from vit_train.data.splits import make_splits
from vit_train.engine.checkpoint import CheckpointKeeper
from vit_train.engine.compiling import compile_model
from vit_train.engine.device import be_deterministic, keep_freed_memory, pick_device, pick_precision
from vit_train.engine.metrics import Evaluation
from vit_train.engine.trainer import NonFiniteLoss, Trainer
from vit_train.gallery import draw_gallery
from vit_train.report import provenance
from vit_train.report.figures import image_grid
from vit_train.report.metrics_csv import MetricsCsv
from vit_train.report.pictures import Pictures
from vit_train.report.summary import result_dict, write_json
from vit_train.report.tensorboard import TensorBoard
from vit_train.report.terminal import Terminal, parameter_breakdown, result_line
from vit_train.tasks.registry import make_task
from vit_train.trained import about_run, begin_from, load

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
    task = make_task(config.task, config.model, data.image_shape, len(data.classes))
    model = task.build_model()
    if config.init_from is not None:
        begin_from(config.init_from, model)
    model.to(device)

    images = splits.train
    if data.unlabelled is not None and not task.needs_labels:
        images = with_unlabelled(images, data.unlabelled)
    statistics = channel_statistics(images.images)
    normalise = Normalise(statistics, device)
    loop = config.train
    source = TrainBatches(
        images,
        len(data.classes),
        normalise,
        config.augment,
        loop.batch_size,
        config.seed,
        device,
    )
    batches = task.train_batches(source)

    def unaugmented(part: ImageSet) -> Iterable[Batch]:
        return task.eval_batches(EvalBatches(part, normalise, loop.eval_batch_size, device))

    val = None if splits.val is None else unaugmented(splits.val)

    settings = as_dict(config)
    keeper = CheckpointKeeper(
        folder / "checkpoints", about_run(settings, data, statistics, provenance.versions())
    )
    board = TensorBoard(folder)
    terminal = Terminal(len(batches), loop.epochs)
    observers = [keeper, board, MetricsCsv(folder / "metrics.csv"), terminal]
    if task.columns and val is not None:
        draw = partial(draw_gallery, task, batch=next(iter(val)), normalise=normalise)
        observers.append(Pictures(draw, board, folder / "pictures.png"))
    trainer = Trainer(model, task, batches, val, config, precision, observers)

    if config.compile:
        sample, targets = (each[: trainer.lanes.piece] for each in next(batches.epoch(0)))
        with trainer.lanes:  # compiled code is bound to a number of threads
            compile_model(model, task, (sample, targets), precision)

    text = OmegaConf.to_yaml(OmegaConf.create(settings))
    (folder / "config.yaml").write_text(text)
    board.config(text)
    board.figure("data/train_augmented", image_grid(*first_batch(source, data)))
    _, size, _ = data.image_shape
    sizes = {"train": len(images), "val": len(splits.val or []), "test": len(splits.test)}
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
        logger.info(f"test, {name} weights{selection_note(config)}: {result_line(result)}")
    summary |= {
        "status": "finished" if trainer.finished else "interrupted",
        "epochs": trainer.epoch,
        "steps": trainer.step,
        "images_seen": trainer.images_seen,
        "evaluated_weights": "ema" if trainer.ema else "raw",
        "best_val": keeper.best(),
        "selected_on": {"split": "val", "test": "test", "none": None}[config.data.val],
        "test": {name: result_dict(result) for name, result in results.items()},
        "seconds": round(time.perf_counter() - started, 1),
    }
    write_json(folder / "summary.json", summary)
    board.close(settings, final_metrics(results, keeper.best_val))
    return trainer.finished


def test_results(
    trainer: Trainer,
    keeper: CheckpointKeeper,
    batches: Iterable[Batch],
    config: TrainConfig,
    device: torch.device,
) -> dict[str, Evaluation]:
    """The one time the test set is read: the final weights and, with validation, the best."""
    with trainer.lanes:
        results = {"final": trainer.evaluate(trainer.eval_model, batches)}
        if keeper.best_epoch == trainer.epoch:
            results["best"] = results["final"]
        elif keeper.best_path.exists():
            model, _ = load(keeper.best_path, device)
            results["best"] = trainer.evaluate(model, batches)
    return results


def final_metrics(results: dict[str, Evaluation], val: Evaluation | None) -> dict[str, float]:
    """What runs are compared by, for TensorBoard's table of hyper-parameters."""
    found = {f"test_{each.best_by}_{name}": each for name, each in results.items()}
    if val is not None:
        found[f"best_val_{val.best_by}"] = val
    return {name: each.values[each.best_by] for name, each in found.items()}


def selection_note(config: TrainConfig) -> str:
    return " (selected on test)" if config.data.val == "test" else ""


def with_unlabelled(train: ImageSet, unlabelled: Tensor) -> ImageSet:
    """For tasks that need no labels; −1 stands for none."""
    labels = torch.full((len(unlabelled),), -1)
    return ImageSet(torch.cat((train.images, unlabelled)), torch.cat((train.labels, labels)))


def first_batch(batches: TrainBatches, data: Dataset, count: int = 18) -> tuple[Tensor, list[str]]:
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
