"""The lines that a run prints before its first step and after its last."""

import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from vit_train.base.text import counted, printable
from vit_train.data.config import FolderConfig
from vit_train.data.train_batches import TrainBatches
from vit_train.engine.metrics import Evaluation, is_uneven
from vit_train.engine.precision import bf16_speedup, pick_precision
from vit_train.engine.schedule import warmup_steps
from vit_train.figures.measures import result_line
from vit_train.model.build import parameter_breakdown
from vit_train.model.config import ViTConfig, differences
from vit_train.runs.config import DEFAULT_MODEL, default_settings, vit_presets
from vit_train.tasks.config import ClassifyConfig
from vit_train.training.checkpoints import Earlier
from vit_train.training.setup import Setup, class_counts, makes_up

# The width of lines, and of the words that begin them.
WIDTH, MARGIN = 80, 8
# Fewer validation images say little.
FEW = 100
# In fewer steps, a model hardly learns from random weights; in as many as these, it does. Small
# batches make more steps of few images.
FEW_STEPS, ENOUGH_STEPS, SMALL_BATCH = 1_000, 2_000, 16


def opening(setup: Setup, path: Path, origin: str) -> str:
    """Describe a run: its data, its model, its work, its folder `path`, and where it begins."""
    lines = {
        "data": data_line(setup),
        "model": model_line(setup),
        "work": work_line(setup),
        "teacher": teacher_line(setup),
        "folder": str(path),
        "from": origin,
        "best": best_epoch(setup),
        "note": few_images(setup),
        "hint": "" if origin else few_steps(setup),
    }
    return "\n".join(labeled(label, line) for label, line in lines.items() if line)


def origin(setup: Setup, earlier: Earlier | None) -> str:
    """Return words about the weights that training starts from; "" for random weights."""
    if earlier is None:
        return setup.origin
    if earlier.folder is None:
        return f"resuming after step {earlier.state.step}"
    optim, epochs = setup.config.optim, setup.config.train.epochs
    return (
        f"extends {earlier.folder} after epoch {earlier.chain[-1].epochs}: the learning rate "
        f"rises to {optim.lr:g} in {optim.warmup_epochs:g} of {counted(epochs, 'epoch')}, then "
        f"falls to {optim.min_lr:g}"
    )


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


def best_epoch(setup: Setup) -> str:
    """Name the measure of the best epoch if it is not the usual accuracy, or return ""."""
    if setup.task.best_by != "balanced_acc" or setup.splits.val is None:
        return ""
    return (
        "the epoch with the highest balanced accuracy in validation, in which every class has the "
        "same weight (checkpoint.metric=acc: the highest accuracy)"
    )


def few_images(setup: Setup) -> str:
    """Advise about a validation set of a few images, or return ""."""
    count = setup.sizes["val"]
    if not setup.task.needs_labels or setup.config.data.cv_folds or not 0 < count < FEW:
        return ""
    return (
        f"{counted(count, 'validation image')} can hardly tell which epoch is the best: "
        "checkpoints/last.safetensors has the final weights, and data.cv_folds=5 data.cv_fold=0 "
        "(to 4) validates on more"
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
        f"{setup.device.type}{several}{speed(setup)}{left_out(batches)}{short_warmup(setup)}"
    )


def speed(setup: Setup) -> str:
    """Describe this CPU's speed in bf16, and name a faster precision if there is one."""
    if setup.device.type != "cpu":
        return ""
    best = pick_precision("auto", setup.device, setup.model).name
    faster = "" if setup.precision.name == best else f": precision={best} would be faster here"
    ratio = bf16_speedup(setup.model)
    return f" (bf16 multiplies {ratio:.2g} times as fast as fp32{faster})"


def teacher_line(setup: Setup) -> str:
    """Return words about the teacher; "" for none."""
    if not setup.teacher:
        return ""
    facts, accuracy = setup.teacher, setup.teacher["val_acc"]
    known = "" if accuracy is None else f", right on {accuracy:.2%} of the validation images"
    return f"{facts['run']} ({Path(facts['checkpoint']).name}, {facts['weights']} weights){known}"


def left_out(batches: TrainBatches) -> str:
    """Describe the images that an epoch drops because they fill no batch."""
    if not batches.left_out:
        return ""
    return (
        f"; each epoch draws {batches.images_per_epoch:,} images in a new order and leaves out the "
        f"last {batches.left_out:,}, which fill no batch"
    )


def short_warmup(setup: Setup) -> str:
    """Describe a warm-up that was shortened to half of the run."""
    optim, epochs, steps = setup.config.optim, setup.config.train.epochs, len(setup.image_loader)
    if optim.warmup_epochs <= epochs / 2:
        return ""
    taken = warmup_steps(optim, steps, epochs) / steps
    return (
        f"; warm-up {taken:.3g} of {counted(epochs, 'epoch')}, not "
        f"{optim.warmup_epochs:g}: at most half of the run"
    )


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


def written(path: Path, files: Sequence[str]) -> str:
    """Name the files that a finished run has written into its folder."""
    return labeled("written", f"to {from_here(path)}/: {', '.join(files)}")


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
