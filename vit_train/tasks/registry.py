"""The tasks by name: the fixed set that a config or a checkpoint can choose from."""

from collections.abc import Callable
from typing import Any

from vit_train.model.config import ModelConfig
from vit_train.tasks.autoregress import Autoregress
from vit_train.tasks.classify import Classify
from vit_train.tasks.config import TaskConfig
from vit_train.tasks.reconstruct import Reconstruct
from vit_train.tasks.task import Task

TASKS: dict[str, Callable[[Any, ModelConfig, tuple[int, int, int], int], Task]] = {
    "classify": Classify,
    "reconstruct": Reconstruct,
    "autoregress": Autoregress,
}


def make_task(
    config: TaskConfig, model: ModelConfig, image_shape: tuple[int, int, int], num_classes: int
) -> Task:
    """Make the task that the config names; raise ValueError if this model cannot do it."""
    return TASKS[config.name](config, model, image_shape, num_classes)
