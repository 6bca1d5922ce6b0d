"""A moving average of a model's weights."""

import copy

import torch
from torch import Tensor, nn

from vit_train.engine.device import batch_norms


class WeightAverage:
    """An exponential moving average of a model's weights (Polyak averaging).

    The first averages are over fewer than 1/(1 − decay) steps, so that the random initialization is
    soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        self.averages: list[Tensor] = list(self.model.parameters())
        self.weights: list[Tensor] = list(model.parameters())
        # BatchNorm's statistics are already averages; all other buffers are constants.
        self.statistics = [
            pair
            for modules in zip(batch_norms(self.model), batch_norms(model), strict=True)
            for pair in zip(*(module.buffers() for module in modules), strict=True)
        ]

    def rate(self, step: int) -> float:
        """Return how far the averages go towards the weights after this step, counted from 1."""
        return 1 - min(self.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def update(self, rate: Tensor) -> None:
        """Move the averages this far, (), towards the model's weights."""
        moves = torch._foreach_sub(self.weights, self.averages)
        # Of their type, or each would need a launch of its own.
        torch._foreach_mul_(moves, rate.to(self.averages[0].dtype))
        torch._foreach_add_(self.averages, moves)
        for average, value in self.statistics:
            average.copy_(value)
