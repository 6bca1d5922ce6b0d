"""The lines that a run prints: its start, a progress bar with a line per epoch, and its results."""

import contextlib
import logging
import math
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from vit_train.base.log import logger
from vit_train.base.text import counted
from vit_train.config.data import FolderConfig
from vit_train.config.model import ViTConfig
from vit_train.config.run import CONTINUED, TrainConfig
from vit_train.config.tasks import ClassifyConfig
from vit_train.figures.measures import result_line
from vit_train.loop.metrics import Evaluation, Results, is_uneven
from vit_train.loop.trainer import Callback, Trainer, TrainLog
from vit_train.model.build import parameter_breakdown
from vit_train.run.start import Run, balances
from vit_train.trained.folder import for_shell

# The width of lines, and of the labels at their start.
LINE_WIDTH = 80
MARGIN = 8
# The measures in an epoch's line, with their formats.
FORMATS = {"loss": ".4f", "acc": ".2%", "tag_acc": ".2%", "map": ".2%", "knn_acc": ".2%"}


class Terminal(Callback):
    """Prints a table with a line per epoch and, on a terminal or in a notebook, a progress bar."""

    @contextlib.contextmanager
    def shown(self, trainer: Trainer) -> Iterator[None]:
        """Show the trainer's progress within the block, from its current step."""
        self.first_step = trainer.step
        self.began = time.perf_counter()
        self.has_header = False
        # In a notebook, logging.disable() also turns off the bar.
        is_notebook = "ipykernel" in sys.modules and logger.isEnabledFor(logging.INFO)
        has_bar = sys.stderr.isatty() or is_notebook
        with logging_redirect_tqdm() if has_bar else contextlib.nullcontext():
            self.bar = tqdm(
                total=len(trainer.train_loader),
                initial=trainer.batch,
                disable=not has_bar,
                unit="step",
                dynamic_ncols=True,
                leave=False,
            )
            with self.bar:
                self.name_epoch(trainer)
                yield

    def name_epoch(self, trainer: Trainer) -> None:
        last = trainer.last_epoch
        self.bar.set_description(f"epoch {min(trainer.epoch + 1, last)}/{last}")

    def on_step(self, trainer: Trainer) -> None:
        self.bar.update()

    def on_log(self, trainer: Trainer, log: TrainLog) -> None:
        values = ", ".join(f"{name} {value:.3f}" for name, value in log.values.items())
        self.bar.set_postfix_str(f"{values}, lr {log.lr:.1e}, {log.images_per_s:.0f} img/s")

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        last = trainer.last_epoch
        taken = (time.perf_counter() - self.began) / max(1, log.step - self.first_step)
        left = taken * (last * len(trainer.train_loader) - log.step)
        columns = {"epoch": f"{log.epoch}/{last}"}
        for side, values in (("train", log.values), ("val", val.values if val else {})):
            columns |= {
                f"{side} {name}": format(values[name], form)
                for name, form in FORMATS.items()
                if name in values
            }
        columns |= {
            "lr": f"{log.lr:.1e}",
            "images/s": f"{log.images_per_s:.0f}",
            "left": tqdm.format_interval(left),
        }
        if not self.has_header:
            logger.info("".join(f" {name:>10}" for name in columns))
        self.has_header = True
        logger.info("".join(f" {text:>{max(10, len(name))}}" for name, text in columns.items()))
        self.bar.reset()
        self.name_epoch(trainer)


def opening(run: Run, path: Path, origin: str, is_part: bool = False) -> str:
    """Describe a run: its data, model, amount of work, folder `path`, and starting point.

    `is_part` is True if a part of the work has already been done.
    """
    sizes = run.data.sizes
    classes = run.data.facts.classes
    _, height, width = run.data.facts.image_shape
    order = "" if height == width else " (height × width)"
    cost = f"; {run.flops.forward / 1e9:.3f} GFLOP for one image" if run.flops else ""
    balanced = run.task.best_by == "balanced_acc" and run.data.splits.val is not None
    lines = {
        "data": f"{run.config.data.title}: {sizes['train']:,} training, {sizes['val']:,} "
        f"validation, {counted(sizes['test'], 'test image')}, {height}×{width}{order}, "
        f"{counted(len(classes), 'tag' if run.data.train.has_tags else 'class')}",
        "model": f"{parameter_breakdown(run.model)}{cost}",
        "work": work_line(run, is_part),
        "teacher": run.teacher.get("checkpoint", ""),
        "folder": str(path),
        "from": origin,
        "best": "the epoch with the highest balanced validation accuracy" if balanced else "",
    }
    return "\n".join(
        textwrap.fill(
            line,
            LINE_WIDTH,
            initial_indent=f"{label:<{MARGIN}}",
            subsequent_indent=" " * MARGIN,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for label, line in lines.items()
        if line
    )


def hint(requested: TrainConfig, run: Run, command: str) -> str:
    """Return commands that may suit a folder of images better; "" if there are none.

    `command` is the run's own. The hint is for a user who left the weights, the model and the image
    size at their defaults.
    """
    data = requested.data
    starts = [requested.init_from, *(getattr(requested, each) for each in CONTINUED)]
    if (
        not isinstance(data, FolderConfig)
        or data.image_size is not None
        or requested.model != ViTConfig()
        or any(starts)
        or not run.task.needs_labels
    ):
        return ""
    return (
        f"{'hint':<{MARGIN}}few images: start from pretrained weights\n{' ' * MARGIN}  "
        f"{command} init_from=builtin:cifar10\n{' ' * MARGIN}many images: use larger patches, "
        f"which train faster\n{' ' * MARGIN}  {command} model.patch_size={2 * ViTConfig.patch_size}"
    )


def warn_of_uneven_classes(run: Run) -> None:
    """Warn if the classes are uneven, and name the settings that balance the classes.

    Do nothing if one of these settings is in use, or if images need not have one class each.
    """
    if balances(run.config) or not run.task.one_class:
        return
    classes = run.data.facts.classes
    counts = run.data.train.class_counts(len(classes))
    if not is_uneven(counts):
        return
    most = counts.index(max(counts))
    fewest = counts.index(min(counts))
    weights = isinstance(run.config.task, ClassifyConfig)
    logger.warning(
        f"uneven classes: {counted(counts[most], 'training image')} of {classes[most]}, "
        f"{counts[fewest]:,} of {classes[fewest]}. To balance them, set "
        f"data.sampler=balanced{' or task.class_weights=auto' if weights else ''}"
    )


# In fewer steps, a ViT from random weights learns little.
FEW_STEPS = 500


def work_line(run: Run, is_part: bool) -> str:
    config = run.config
    epochs = config.train.num_epochs
    batches = run.image_batches
    several = f" in {run.processes.count} processes" if run.processes.count > 1 else ""
    tflop = run.training_tflop(epochs * len(batches) * batches.batch_size)
    cost = f", {tflop:,.0f} TFLOP" if tflop and tflop >= 1 else ""
    steps = f"{counted(len(batches), 'step')} of {counted(batches.batch_size, 'image')}"
    advice = ""
    is_random = not (config.init_from or config.extend or is_part)
    if epochs * len(batches) < FEW_STEPS and is_random and config.model.name == "vit":
        planned = "train.minutes=null " if config.train.minutes else ""
        advice = (
            f"; a ViT from random weights learns little in fewer than {FEW_STEPS} steps: use "
            f"{planned}train.epochs={-(-FEW_STEPS // len(batches))} or more"
        )
    expected = ""
    needed = run.expected_seconds
    if needed is not None and not (config.train.minutes or is_part):
        seconds = min(needed, 60 * (config.train.max_minutes or math.inf))
        number, unit = (seconds / 60, "minute") if seconds < 5400 else (seconds / 3600, "hour")
        word, whole = ("about", round) if seconds == needed else ("at most", math.ceil)
        time_needed = f"{word} {counted(whole(number), unit)}"
        expected = f", {time_needed if seconds >= 60 else 'less than a minute'}"
    return (
        f"{counted(epochs, 'epoch')} of {steps}{cost}, {run.precision.name} on "
        f"{run.precision.device.type}{several}{expected}{advice}"
    )


def without_same(results: Results) -> Results:
    """Return the results; leave out "best" if the best weights are the final weights."""
    final = results.get("final")
    return {name: each for name, each in results.items() if name == "final" or each is not final}


def result_lines(results: Results, selected_on: str | None) -> Iterator[str]:
    """Yield a line per test result; a single line if the best weights are the final weights."""
    different = without_same(results)
    on_test = " (selected on test)" if selected_on == "test" else ""
    both = f", also the best{on_test}" if len(different) < len(results) else ""
    for name, result in different.items():
        note = on_test if name == "best" else both
        yield f"test, {name} weights{note}: {result_line(result)}"


def next_steps(run: Run, path: Path) -> str:
    """Return the commands that are most useful after a finished run, for the terminal."""
    here = Path.cwd()
    folder = for_shell(path.relative_to(here) if path.is_relative_to(here) else path)
    use = f"vit-predict ckpt={folder} images=PHOTO.jpg"
    shown = "the model's mistakes"
    if not run.task.needs_labels:
        use = f"vit-train data=DATA init_from={folder}  # a classifier from its encoder"
        shown = "reconstructed images"
    commands = (
        f"vit-eval ckpt={folder}  # report.html: {shown}",
        use,
        f"tensorboard --logdir {folder}",
    )
    return f"{'next':<{MARGIN}}" + f"\n{' ' * MARGIN}".join(commands)
