"""The interface of tasks: the training objective, and what the commands need."""

import copy
from collections.abc import Iterable
from typing import ClassVar, Protocol, Self

import torch
from torch import Tensor, nn

from vit_train.data.batches import Batch, DrawnBatches, EvalBatches
from vit_train.data.dataset import ImageSet
from vit_train.loop.objective import Objective, TrainLoader


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
    image_shape: tuple[int, int, int]

    def build_model(self) -> nn.Module:
        """Build the task's model with newly initialized weights."""

    def example_inputs(self) -> tuple[Tensor, ...]:
        """Return inputs of the model for one image."""
        return (torch.zeros(1, *self.image_shape),)

    def for_training(
        self, labels: Tensor, weighted: bool, best_by: str, teacher: nn.Module | None = None
    ) -> Self:
        """Return this task with all that only training needs.

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
