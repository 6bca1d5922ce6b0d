"""A moving average of a model's weights."""

import copy

import torch
from torch import nn


class WeightAverage:
    """An exponential moving average of a model's weights (Polyak averaging).

    The first averages are over fewer than 1/(1 − decay) steps, so that the random initialization is
    soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.model.parameters()), list(model.parameters()), weight)
        for average, buffer in zip(self.model.buffers(), model.buffers(), strict=True):
            average.copy_(buffer)  # BatchNorm's statistics are already averages
