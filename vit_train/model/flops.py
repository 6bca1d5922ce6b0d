"""The arithmetic of a model, counted by PyTorch."""

from dataclasses import replace

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vit_train.model.config import ModelConfig, ViTConfig


def count_flops(
    config: ModelConfig, image_shape: tuple[int, int, int], num_classes: int, backward: bool
) -> int:
    """Return the FLOPs of a model's matrix products for one image (C,S,S), 2 for a multiply-add.

    They are those of the forward pass and, with `backward`, of the gradient too. The global random
    generators stay as they are.
    """
    if isinstance(config, ViTConfig):  # only explicit products are counted on every machine
        config = replace(config, kernels="scratch")
    with torch.random.fork_rng(devices=[]):
        model: nn.Module = config.build(image_shape, num_classes).eval()
    with FlopCounterMode(display=False) as counter:
        result = model(torch.zeros(1, *image_shape)).sum()
        if backward:
            result.backward()
    return int(counter.get_total_flops())
