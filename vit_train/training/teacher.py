"""The teacher of a distilled run."""

import torch

from vit_train.base.setting import in_pixels, shortest
from vit_train.base.text import listed
from vit_train.data.batches import Normalize
from vit_train.data.dataset import Source
from vit_train.model.config import typed
from vit_train.runs.config import TrainConfig
from vit_train.runs.trained import Trained, load
from vit_train.tasks.classify import Distill, Teacher
from vit_train.tasks.config import DistillConfig


def load_teacher(config: TrainConfig, device: torch.device) -> Trained | None:
    """Load the model that task.teacher= names; return None if the task is not distillation."""
    return load(config.task.teacher, device) if isinstance(config.task, DistillConfig) else None


def taught(config: TrainConfig, teacher: Trained, data: Source, normalize: Normalize) -> Distill:
    """Return the distillation task with its teacher; `normalize` is the student's normalization.

    Raise ValueError if the teacher is no classifier, or if its classes or image size are not those
    of the data.
    """
    assert isinstance(config.task, DistillConfig)
    meta, size, problem = teacher.meta, teacher.meta.image_shape[1:], ""
    if not meta.task.one_class:
        problem = f"a model trained with task={meta.config.task.name} does not classify images"
    elif meta.classes != list(data.classes):
        problem = (
            f"the teacher's classes are {listed(meta.classes)}, but the data's classes are "
            f"{listed(data.classes)}"
        )
    elif meta.image_shape != data.image_shape:
        problem = (
            f"the teacher was trained on images of {in_pixels(size)}, but this run's images have "
            f"{in_pixels(data.image_shape[1:])}: set {typed({'data.image_size': shortest(size)})}"
        )
    if problem:
        raise ValueError(f"task.teacher={config.task.teacher}: {problem}")
    own = Teacher(teacher.model, teacher.normalize, normalize)
    return Distill(config.task, config.model, data.image_shape, len(data.classes), own)
