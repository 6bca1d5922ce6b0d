"""The tasks: each defines a model, a loss and results. The training loop is the same for all."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from vit_train.config.fields import ImageShape, builder
from vit_train.config.model import ModelConfig, ViTConfig
from vit_train.config.tasks import TaskConfig
from vit_train.data.batches import Batch, DrawnBatches, EvalBatches
from vit_train.data.dataset import ImageSet
from vit_train.loop.objective import Objective, TrainLoader
from vit_train.model.products import COUNTED


class Task(Objective, Protocol):
    """Interface of a task, which defines the model, the loss, the targets and the pictures.

    The arguments of its constructor are the task's config, the model's config, the images' shape
    (C,H,W) and the number of classes.
    """

    # True if the task cannot use images without labels.
    needs_labels: ClassVar[bool] = False
    # True if each image has exactly one class.
    one_class: ClassVar[bool] = False
    # The metrics that can select the best epoch.
    selecting: ClassVar[tuple[str, ...]] = ("loss",)
    # Titles of the pictures that show a result side by side; empty if there are none.
    columns: tuple[str, ...] = ()
    # A description of the maps among them; empty if there are none.
    legend: str = ""
    image_shape: ImageShape

    def build_model(self) -> nn.Module:
        """Build the task's model with newly initialized weights."""

    def example_inputs(self) -> tuple[Tensor, ...]:
        """Return inputs of the model for one image."""
        return (torch.zeros(1, *self.image_shape),)

    def for_training(
        self, labels: Tensor, weighted: bool, best_by: str, teacher: nn.Module | None = None
    ) -> Self:
        """Return a copy of this task, prepared for training.

        Values for the loss, such as class weights, are derived from the training labels (N,). If
        `weighted`, the targets are those of `TrainBatches.weighted`. `best_by` selects the best
        epoch.
        """
        task = copy.copy(self)
        task.best_by = best_by
        return task

    def train_loader(self, batches: DrawnBatches) -> TrainLoader:
        """Return the training batches with this task's targets; the default targets are labels."""
        return batches

    def eval_loader(self, batches: EvalBatches) -> Iterable[Batch]:
        """Return the evaluation batches with this task's targets, the same in every evaluation."""
        return batches

    def pictures(self, model: nn.Module, images: Tensor, targets: Tensor) -> list[Tensor]:
        """Return a batch of images or of maps for each title in `columns`.

        Images (B,C,H,W) are normalized like the model's input. Maps (B,rows,columns) are
        nonnegative, and are drawn over the images of the first column.
        """
        return []


def require_labels(task: Task, images: ImageSet) -> None:
    """Raise ValueError if the task needs classes and the images have tags, or the reverse."""
    if task.needs_labels and task.one_class == images.has_tags:
        raise ValueError(
            "these images have tags, but this model predicts one class per image: task=tags trains "
            "a model that predicts tags"
            if images.has_tags
            else "task=tags needs images with tags: data=table with a CSV file that has a column "
            "tags (data.file=FILE)"
        )


def make_task(
    config: TaskConfig, model: ModelConfig, image_shape: ImageShape, num_classes: int
) -> Task:
    """Build the task; raise ValueError if it does not support the model or the images (C,H,W)."""
    task: Task = builder(config)(config, model, image_shape, num_classes)
    return task


@dataclass(frozen=True)
class Flops:
    """FLOPs for one image: of the forward pass, and of training (forward and backward pass).

    `dropping` counts training with PatchDropout; without PatchDropout, it equals `training`.
    `teacher` counts the forward pass of a teacher, which is not part of the other counts. With
    hints (task.hint), a model with a class token computes its whole last block; the counts include
    only the class token there.
    """

    forward: int
    training: int
    dropping: int
    teacher: int = 0


def count_flops(
    config: TaskConfig, model: ModelConfig, image_shape: ImageShape, num_classes: int
) -> Flops:
    """Return the FLOPs of the matrix products of a task's model for one image (C,H,W).

    A multiply-add counts as 2 FLOPs. Leave the state of the global random generator unchanged.
    """
    if isinstance(model, ViTConfig):  # only explicit products are counted on every machine
        model = replace(model, kernels="scratch", init="torch")
    task = make_task(config, model, image_shape, num_classes)
    with torch.random.fork_rng(devices=[]):
        network = task.build_model().eval()
        inputs = task.example_inputs()
        forward, training = passes(network, inputs)
        drops = isinstance(model, ViTConfig) and model.patch_dropout
        dropping = passes(network.train(), inputs)[1] if drops else training
    return Flops(forward, training, dropping)


def passes(network: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[int, int]:
    """Return the FLOPs of a forward pass, and of a forward and a backward pass."""
    from torch.utils.flop_counter import FlopCounterMode  # slow, and only needed for training

    with FlopCounterMode(display=False, custom_mapping=COUNTED) as counter:
        result = network.forward(*inputs).sum()
        forward = int(counter.get_total_flops())
        result.backward()
    return forward, int(counter.get_total_flops())
