"""Build a task from its settings; to add a task, add a line to TASKS."""

from collections.abc import Callable

from vit_train.base.setting import registered
from vit_train.model.config import ModelConfig
from vit_train.tasks.classify import Classify, Distill
from vit_train.tasks.config import (
    AutoregressConfig,
    ClassifyConfig,
    DistillConfig,
    ReconstructConfig,
    TagsConfig,
    TaskConfig,
)
from vit_train.tasks.pixels import Autoregress, Reconstruct
from vit_train.tasks.tags import Tags
from vit_train.tasks.task import Task

TASKS: dict[type, Callable[..., Task]] = {
    ClassifyConfig: Classify,
    TagsConfig: Tags,
    DistillConfig: Distill,
    ReconstructConfig: Reconstruct,
    AutoregressConfig: Autoregress,
}


def make_task(
    config: TaskConfig, model: ModelConfig, image_shape: tuple[int, int, int], num_classes: int
) -> Task:
    """Build the task; raise ValueError if it does not support the model or the images (C,H,W)."""
    return registered(TASKS, config)(config, model, image_shape, num_classes)
