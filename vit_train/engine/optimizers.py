"""The optimizers by their settings: a new optimizer adds its line to OPTIMIZERS."""

from collections.abc import Callable
from typing import Any

from torch import nn

from vit_train.base.setting import registered
from vit_train.engine.config import AdamWConfig, MuonConfig, OptimConfig
from vit_train.engine.muon import make_muon
from vit_train.engine.optim import Optimizer, make_adamw

OPTIMIZERS: dict[type, Callable[[nn.Module, Any], list[Optimizer]]] = {
    AdamWConfig: lambda model, config: [make_adamw(model, config)],
    MuonConfig: make_muon,
}


def make_optimizers(model: nn.Module, config: OptimConfig) -> list[Optimizer]:
    """Return the optimizers of the model: each of its trained parameters belongs to exactly one."""
    return registered(OPTIMIZERS, config)(model, config)
