"""What a run prints: its start, a line an epoch with a progress bar, its results."""

import contextlib
import logging
import shlex
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from vit_train.base.text import counted, printable
from vit_train.data.config import FolderConfig
from vit_train.engine.metrics import Evaluation, is_uneven
from vit_train.engine.precision import pick_precision
from vit_train.engine.trainer import Callback, Trainer, TrainLog
from vit_train.figures.measures import result_line
from vit_train.model.build import parameter_breakdown
from vit_train.model.config import ViTConfig, differences
from vit_train.runs.config import DEFAULT_MODEL, default_settings, vit_presets
from vit_train.tasks.config import ClassifyConfig
from vit_train.training.setup import Setup, class_counts, makes_up

logger = logging.getLogger(__name__)

# The width of lines, and of the words that begin them.
WIDTH, MARGIN = 80, 8
# In fewer steps, a model hardly learns from random weights; in as many as these, it does. Small
# batches make more steps of few images.
FEW_STEPS, ENOUGH_STEPS, SMALL_BATCH = 1_000, 2_000, 16


class Terminal(Callback):
    """A table with a line per epoch and, if stderr is a terminal, a tqdm bar over its steps."""

    @contextlib.contextmanager
    def shown(self, trainer: Trainer) -> Iterator[None]:
        """Show the progress of a trainer, which may resume, within the block."""
        self.first_step, self.began = trainer.step, time.perf_counter()
        self.has_header = False
        with logging_redirect_tqdm():
            self.bar = tqdm(
                total=len(trainer.train_loader),
                initial=trainer.batch,
                disable=not sys.stderr.isatty(),
                unit="step",
                dynamic_ncols=True,
                leave=False,
            )
            with self.bar:
                self.name_epoch(trainer.epoch, trainer)
                yield

    def name_epoch(self, done: int, trainer: Trainer) -> None:
        last = trainer.last_epoch
        self.bar.set_description(f"epoch {min(done + 1, last)}/{last}")

    def on_step(self, trainer: Trainer) -> None:
        self.bar.update()

    def on_log(self, trainer: Trainer, log: TrainLog) -> None:
        values = ", ".join(f"{name} {value:.3f}" for name, value in log.values.items())
        self.bar.set_postfix_str(f"{values}, lr {log.lr:.1e}, {log.images_per_s:.0f} img/s")

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        sides = {"train": log.values, **({"val": val.values} if val else {})}
        if not self.has_header:
            logger.info(header_line(sides))
        self.has_header = True
        remaining = trainer.last_epoch * len(trainer.train_loader) - log.step
        seconds = (time.perf_counter() - self.began) / max(1, log.step - self.first_step)
        logger.info(
            f"{log.epoch:4d}/{trainer.last_epoch:<4d}{'  '.join(map(cells, sides.values()))}"
            f"  {log.lr:.1e}  {log.images_per_s:8.0f}"
            f"  {tqdm.format_interval(seconds * remaining):>8}"
        )
        self.bar.reset()
        self.name_epoch(log.epoch, trainer)


def header_line(sides: Mapping[str, dict[str, float]]) -> str:
    """Return the names of the columns of an epoch's line."""
    names = (
        f"{f'{side} loss':>10}" + (f"{'acc':>8}" if "acc" in values else "")
        for side, values in sides.items()
    )
    return f"{'epoch':<9}{'  '.join(names)}  {'lr':>7}  images/s  {'left':>8}"


def cells(values: dict[str, float]) -> str:
    accuracy = f"{values['acc']:8.2%}" if "acc" in values else ""
    return f"{values['loss']:10.3f}{accuracy}"


def opening(setup: Setup, path: Path, origin: str) -> str:
    """Describe a run: its data, its model, its work, its folder `path`, and where it begins."""
    lines = {
        "data": data_line(setup),
        "model": model_line(setup),
        "work": work_line(setup),
        "teacher": teacher_line(setup.teacher),
        "folder": str(path),
        "from": origin,
        "hint": "" if origin else few_steps(setup),
    }
    return "\n".join(labeled(label, line) for label, line in lines.items() if line)


def uneven_classes(setup: Setup) -> str:
    """Name settings that make up for uneven classes, or return "" if none is needed."""
    if makes_up(setup.config, setup.task) or not setup.task.needs_labels:
        return ""
    classes, counts = setup.data.classes, class_counts(setup.train_set, setup.data)
    if not is_uneven(counts):
        return ""
    most, fewest = counts.index(max(counts)), counts.index(min(counts))
    ways = ["data.sampler=balanced takes every class equally often"]
    if isinstance(setup.config.task, ClassifyConfig):
        ways.append("task.class_weights=auto gives rare classes more weight in the loss")
    return printable(
        f"uneven classes: {counted(counts[most], 'training image')} of {classes[most]}, "
        f"{counts[fewest]:,} "
        f"of {classes[fewest]}. {', '.join(ways)}"
    )


def few_steps(setup: Setup) -> str:
    """Advise more steps for a few own images, or return "" if there are enough."""
    loop, batches = setup.config.train, setup.image_loader
    steps = loop.epochs * len(batches)
    if steps >= FEW_STEPS or not isinstance(setup.config.data, FolderConfig):
        return ""
    batch = min(SMALL_BATCH, batches.batch_size)
    epochs = round(ENOUGH_STEPS / (batches.images_per_epoch // batch), -1)
    return (
        f"only {counted(steps, 'step')} in all: try train.batch_size={batch} "
        f"train.epochs={max(10, round(epochs))}, or pretrained weights (init_from=)"
    )


def labeled(label: str, line: str) -> str:
    return textwrap.fill(
        line,
        WIDTH,
        initial_indent=f"{label:<{MARGIN}}",
        subsequent_indent=" " * MARGIN,
        break_long_words=False,
        break_on_hyphens=False,
    )


def data_line(setup: Setup) -> str:
    sizes, size = setup.sizes, setup.data.image_shape[1]
    return (
        f"{setup.config.data.title}: {sizes['train']:,} training, {sizes['val']:,} validation, "
        f"{counted(sizes['test'], 'test image')}, {size}×{size}, "
        f"{counted(len(setup.data.classes), 'class')}"
    )


def model_line(setup: Setup) -> str:
    cost = f"; {setup.flops.forward / 1e9:.3f} GFLOP for one image" if setup.flops else ""
    return f"{parameter_breakdown(setup.model)}{cost}"


def work_line(setup: Setup) -> str:
    epochs, batches = setup.config.train.epochs, setup.image_loader
    processes = setup.processes.count
    several = f" in {processes} processes" if processes > 1 else ""
    tflop = setup.training_tflop(epochs * len(batches) * batches.batch_size)
    cost = f", {tflop:,.0f} TFLOP" if tflop and tflop >= 1 else ""
    steps = f"{counted(len(batches), 'step')} of {counted(batches.batch_size, 'image')}"
    return (
        f"{counted(epochs, 'epoch')} of {steps}{cost}, {setup.precision.name} on "
        f"{setup.device.type}{several}{faster(setup)}"
    )


def faster(setup: Setup) -> str:
    """Name a precision in which this CPU would be faster, if there is one."""
    if setup.device.type != "cpu":
        return ""
    best = pick_precision("auto", setup.device, setup.model).name
    return "" if setup.precision.name == best else f" (precision={best} would be faster here)"


def teacher_line(facts: dict[str, Any]) -> str:
    """Return words about the teacher; "" for none."""
    if not facts:
        return ""
    accuracy = facts["val_acc"]
    known = "" if accuracy is None else f", right on {accuracy:.2%} of the validation images"
    return f"{facts['run']} ({Path(facts['checkpoint']).name}, {facts['weights']} weights){known}"


def without_same(results: dict[str, Evaluation]) -> dict[str, Evaluation]:
    """Return the results without "best" where the best weights are the final ones."""
    same = bool(results) and results.get("best") is results["final"]
    return {name: result for name, result in results.items() if not (same and name == "best")}


def result_lines(results: dict[str, Evaluation], selected_on: str | None) -> Iterator[str]:
    """Yield a line for each different result on the test images."""
    different = without_same(results)
    on_test = " (selected on test)" if selected_on == "test" else ""
    both = f", also the best{on_test}" if len(different) < len(results) else ""
    for name, result in different.items():
        note = on_test if name == "best" else both
        yield f"test, {name} weights{note}: {result_line(result)}"


def next_steps(setup: Setup, path: Path) -> str:
    """Name commands for a finished run."""
    commands = dict(next_commands(setup, shlex.quote(str(from_here(path)))))
    width = max(map(len, commands))
    steps = "\n".join(f"{command:<{width}}  {use}" for command, use in commands.items())
    return f"{'next':<{MARGIN}}{textwrap.indent(steps, ' ' * MARGIN).lstrip()}"


def from_here(path: Path) -> Path:
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def next_commands(setup: Setup, run: str) -> Iterator[tuple[str, str]]:
    """Yield commands that make sense for this run, each with its use."""
    if setup.task.needs_labels:
        yield f"vit-eval ckpt={run}", "what it gets wrong: report.html"
        yield f"vit-predict ckpt={run} images=PHOTO.jpg", "what it predicts for an image"
    else:
        yield f"vit-eval ckpt={run}", "its pictures of test images"
        if len(setup.data.classes) > 1:
            yield f"vit-train {classifier_settings(setup)} init_from={run}", "a classifier from it"
    yield f"tensorboard --logdir {run}", "its curves"


def classifier_settings(setup: Setup) -> str:
    """Return the settings of a classifier with the same encoder on the same images."""
    config, model = asdict(setup.config), setup.config.model
    usual = default_settings(config)["data"]
    settings = [f"data={setup.config.data.name}"]
    for key, value in config["data"].items():
        if value != usual[key] and key not in ("download", "urls"):
            settings.append(f"data.{key}={shlex.quote(str(value))}")
    if isinstance(model, ViTConfig):
        settings += differences(model, vit_presets()[DEFAULT_MODEL])
    return " ".join(settings)
