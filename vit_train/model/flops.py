"""The arithmetic of a model, counted by PyTorch."""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vit_train.model.build import build
from vit_train.model.config import ModelConfig, ViTConfig
from vit_train.model.memory import attention_bytes


class Flops(NamedTuple):
    """FLOPs for one image: of the forward pass, and of training: forward and backward."""

    forward: int
    training: int


def counting_bytes(config: ModelConfig, image_size: int) -> int:
    """Return what `count_flops` takes for attention: that of all layers, kept for its gradients."""
    if not isinstance(config, ViTConfig):
        return 0
    return 3 * config.layers * attention_bytes(replace(config, kernels="scratch"), image_size)


def count_flops(config: ModelConfig, image_shape: tuple[int, int, int], num_classes: int) -> Flops:
    """Return the FLOPs of a model's matrix products for one image (C,S,S), 2 for a multiply-add.

    The global random generators stay as they are.
    """
    if isinstance(config, ViTConfig):  # only explicit products are counted on every machine
        config = replace(config, kernels="scratch", init="torch")
    with torch.random.fork_rng(devices=[]):
        model: nn.Module = build(config, image_shape, num_classes).eval()
    with FlopCounterMode(display=False) as counter:
        result = model(torch.zeros(1, *image_shape)).sum()
        forward = int(counter.get_total_flops())
        result.backward()
    return Flops(forward, int(counter.get_total_flops()))
