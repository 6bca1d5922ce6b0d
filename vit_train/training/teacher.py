"""The trained classifier that teaches a run: found, checked, and noted in its provenance."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vit_train.base.text import listed
from vit_train.engine.metrics import Classification
from vit_train.engine.objective import evaluate
from vit_train.runs.paths import run_at
from vit_train.runs.trained import Meta, Trained, load
from vit_train.tasks.classify import Distill, Teacher
from vit_train.tasks.config import DistillConfig, TaskConfig
from vit_train.training.setup import Setup


def load_teacher(config: TaskConfig, device: torch.device) -> tuple[Path, Trained] | None:
    """Return the run that the task names as its teacher, and its model; None without one.

    Raise ValueError if it cannot be loaded.
    """
    if not isinstance(config, DistillConfig):
        return None
    try:
        run = run_at(Path(config.teacher))
        return run, load(run, device)
    except ValueError as error:
        raise ValueError(f"task.teacher={config.teacher}: {error}") from error


def with_teacher(setup: Setup, found: tuple[Path, Trained] | None) -> Setup:
    """Give the task the teacher that was found and note what it is, if the task has one.

    Its accuracy is that on this run's validation images. Raise ValueError if it cannot teach them.
    """
    config, task = setup.config.task, setup.task
    if not (found and isinstance(config, DistillConfig) and isinstance(task, Distill)):
        return setup
    run, trained = found
    meta = trained.meta
    try:
        require_fitting(meta, setup)
    except ValueError as error:
        raise ValueError(f"task.teacher={config.teacher}: {error}") from error
    task.teacher = Teacher(trained.model, trained.normalize, setup.normalize)
    facts: dict[str, Any] = {
        "run": str(run),
        "checkpoint": str(meta.path),
        "weights": meta.weights,
        "fingerprint": meta.checksum,
        "val_acc": None,
    }
    if setup.val_loader is not None:
        on_validation = evaluate(
            task.teacher, task, setup.val_loader, setup.precision, processes=setup.processes
        )
        assert isinstance(on_validation, Classification)
        facts["val_acc"] = on_validation.acc
    # A folder of runs means another run once a newer one is finished: its name is kept instead.
    named = replace(setup.config, task=replace(config, teacher=str(run)))
    return replace(setup, config=named, teacher=facts)


def require_fitting(meta: Meta, setup: Setup) -> None:
    """Raise ValueError unless the teacher classifies such images into the same classes."""
    if not meta.task.needs_labels:
        raise ValueError(f"a run with task={meta.config.task.name} does not classify images")
    if meta.classes != list(setup.data.classes):
        raise ValueError(
            f"its classes are {listed(meta.classes)}, but those of this run's data are "
            f"{listed(setup.data.classes)}"
        )
    if meta.image_shape != setup.data.image_shape:
        sizes = meta.image_shape[1], setup.data.image_shape[1]
        raise ValueError(
            f"it was trained on images of {sizes[0]} by {sizes[0]}, but this run has {sizes[1]} by "
            f"{sizes[1]}: set data.image_size={sizes[0]}"
        )
