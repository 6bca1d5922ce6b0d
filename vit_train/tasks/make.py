"""Build a task from its settings, and count its FLOPs."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vit_train.config.fields import builder
from vit_train.config.model import ModelConfig, ViTConfig
from vit_train.config.tasks import TaskConfig
from vit_train.tasks.task import Task


def make_task(
    config: TaskConfig, model: ModelConfig, image_shape: tuple[int, int, int], num_classes: int
) -> Task:
    """Build the task; raise ValueError if it does not support the model or the images (C,H,W)."""
    task: Task = builder(config)(config, model, image_shape, num_classes)
    return task


@dataclass(frozen=True)
class Flops:
    """FLOPs for one image: of the forward pass, and of training (forward and backward pass).

    `dropping` counts training with PatchDropout; without PatchDropout, it equals `training`.
    `teacher` counts the forward pass of a teacher, which is not part of the other counts.
    """

    forward: int
    training: int
    dropping: int
    teacher: int = 0


def count_flops(
    config: TaskConfig, model: ModelConfig, image_shape: tuple[int, int, int], num_classes: int
) -> Flops:
    """Return the FLOPs of the matrix products of a task's model for one image (C,H,W).

    A multiply-add counts as 2 FLOPs. Leave the state of the global random generator unchanged.
    """
    if isinstance(model, ViTConfig):  # only explicit products are counted on every machine
        model = replace(model, kernels="scratch", init="torch")
    task = make_task(config, model, image_shape, num_classes)
    with torch.random.fork_rng(devices=[]):
        network, inputs = task.build_model().eval(), task.example_inputs()
        forward, training = passes(network, inputs)
        drops = isinstance(model, ViTConfig) and model.patch_dropout
        dropping = passes(network.train(), inputs)[1] if drops else training
    return Flops(forward, training, dropping)


def passes(network: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[int, int]:
    """Return the FLOPs of a forward pass, and of a forward and a backward pass."""
    with FlopCounterMode(display=False) as counter:
        result = network.forward(*inputs).sum()
        forward = int(counter.get_total_flops())
        result.backward()
    return forward, int(counter.get_total_flops())
