"""AdamW, the learning rate as a pure function of the step, and a moving average of weights."""

import copy
import math
from typing import Any

import torch
from torch import nn

from vit_train.engine.config import OptimConfig


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """Return an AdamW optimizer that decays the linear and convolution weights and nothing else."""
    matrices = {
        module.weight for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)
    }
    undecayed = [parameter for parameter in model.parameters() if parameter not in matrices]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in model.parameters() if p in matrices]},
        {"params": undecayed, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        groups,
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
        fused=True,
    )


# The state that AdamW keeps for each parameter.
MOMENTS = {"step", "exp_avg", "exp_avg_sq"}


def restore_moments(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load an earlier optimizer's moments, but keep this optimizer's own settings.

    Raise ValueError if the moments do not fit this optimizer's parameters.
    """
    fresh = optimizer.state_dict()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not state["state"].keys() <= set(range(len(parameters))):
        raise ValueError("the optimizer's moments belong to other parameters")
    for number, moments in state["state"].items():
        if moments.keys() != MOMENTS:
            raise ValueError("the optimizer's moments belong to another kind of optimizer")
        for name, moment in moments.items():
            shape = torch.Size() if name == "step" else parameters[number].shape
            if moment.shape != shape or not moment.is_floating_point():
                raise ValueError(f"the optimizer's {name} has another shape than its parameter")
    optimizer.load_state_dict({**fresh, "state": state["state"]})


def learning_rate(step: int, config: OptimConfig, steps_per_epoch: int, epochs: int) -> float:
    """Return the learning rate of a step, counted from 0.

    It is a linear warm-up, followed by half a cosine (Loshchilov & Hutter 2017).
    """
    total = steps_per_epoch * epochs
    warmup = min(round(config.warmup_epochs * steps_per_epoch), total)
    if step < warmup:
        return config.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    cosine = (1 + math.cos(math.pi * min(1.0, progress))) / 2
    return config.min_lr + (config.lr - config.min_lr) * cosine


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
