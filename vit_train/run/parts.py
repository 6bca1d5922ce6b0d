"""The parts of a run: its final settings, data, task and model."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from torch import nn

from vit_train.base.memory import memory_bytes
from vit_train.config.model import ModelConfig
from vit_train.config.run import TrainConfig
from vit_train.data.batches import Batch, EvalBatches, TrainBatches
from vit_train.data.dataset import ImageSet
from vit_train.loop.distributed import Processes
from vit_train.loop.objective import TrainLoader
from vit_train.loop.precision import Precision
from vit_train.model.build import attention_gradient_bytes
from vit_train.run.data import RunData
from vit_train.tasks import Flops, Task, count_flops


@dataclass(frozen=True)
class Run:
    """What is trained, on what and how: `config` has no open settings."""

    config: TrainConfig
    precision: Precision
    processes: Processes
    data: RunData
    # This process's share of the augmented images, and the same with the task's targets.
    image_batches: TrainBatches
    train_loader: TrainLoader
    task: Task
    model: nn.Module
    # The source of the model's initial weights; "" means random weights.
    origin: str
    # Facts about the teacher, and its model; empty without one.
    teacher: dict[str, str]
    teacher_model: ModelConfig | None

    def unaugmented(self, part: ImageSet) -> Iterable[Batch]:
        """Return this process's unaugmented batches of a split, with the task's targets."""
        images = EvalBatches(
            part,
            self.data.normalize,
            self.config.train.eval_batch_size,
            self.precision.device,
            rank=self.processes.rank,
            ranks=self.processes.count,
        )
        return self.task.eval_loader(images)

    @property
    def validation_batches(self) -> Iterable[Batch] | None:
        return None if self.data.splits.val is None else self.unaugmented(self.data.splits.val)

    @cached_property
    def flops(self) -> Flops | None:
        """Return the FLOPs of all matrix products for one image.

        The count does not depend on the machine. Return None if counting would need too much
        memory.
        """
        shape = self.data.facts.image_shape
        count = len(self.data.facts.classes)
        models = [model for model in (self.config.model, self.teacher_model) if model]
        if max(attention_gradient_bytes(each, shape[1:]) for each in models) > memory_bytes() / 4:
            return None
        own, *teachers = (count_flops(self.config.task, each, shape, count) for each in models)
        return replace(own, teacher=sum(each.forward for each in teachers))

    def training_tflop(self, images: int) -> float | None:
        """Return the TFLOP of training on this many images.

        Return None if `flops` is None, or if only a decoder is trained.
        """
        if self.flops is None or (self.config.train.freeze and not self.task.needs_labels):
            return None
        # A frozen encoder needs no gradient, and the head's gradient costs next to nothing.
        # It also drops no patches.
        if self.config.train.freeze:
            return images * (self.flops.forward + self.flops.teacher) / 1e12
        epochs = getattr(self.config.model, "patch_dropout_epochs", None) or sys.maxsize
        dropped = min(images, epochs * len(self.train_loader) * self.train_loader.batch_size)
        own = dropped * self.flops.dropping + (images - dropped) * self.flops.training
        return (own + images * self.flops.teacher) / 1e12
