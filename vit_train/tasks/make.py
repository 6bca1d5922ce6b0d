"""The tasks by their settings: a new task adds its line to TASKS."""

from collections.abc import Callable

from vit_train.base.setting import registered
from vit_train.model.config import ModelConfig
from vit_train.tasks.classify import Classify, Distill
from vit_train.tasks.config import (
    AutoregressConfig,
    ClassifyConfig,
    DistillConfig,
    ReconstructConfig,
    TaskConfig,
)
from vit_train.tasks.pixels import Autoregress, Reconstruct
from vit_train.tasks.task import Task

TASKS: dict[type, Callable[..., Task]] = {
    ClassifyConfig: Classify,
    DistillConfig: Distill,
    ReconstructConfig: Reconstruct,
    AutoregressConfig: Autoregress,
}


def make_task(
    config: TaskConfig, model: ModelConfig, image_shape: tuple[int, int, int], num_classes: int
) -> Task:
    """Make the task; raise ValueError if this model or these images (C,S,S) do not fit it."""
    return registered(TASKS, config)(config, model, image_shape, num_classes)
