"""How large the weights and the gradients of each layer are."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm


def layer_norms(named: Iterable[tuple[str, nn.Parameter]]) -> dict[str, tuple[float, float]]:
    """Return the Euclidean norms of the weights and of the gradient of each layer.

    A layer is a part of the model or, if the part is a list of them, one block: "blocks.3". This
    waits for the device once.
    """
    layers: dict[str, list[nn.Parameter]] = {}
    for name, parameter in named:
        if parameter.grad is not None:
            layers.setdefault(layer_of(name), []).append(parameter)
    pairs = [
        torch.stack([get_total_norm(tensors) for tensors in (weights, gradients_of(weights))])
        for weights in layers.values()
    ]
    if not pairs:
        return {}
    values = torch.stack(pairs).tolist()
    return {layer: (weight, grad) for layer, (weight, grad) in zip(layers, values, strict=True)}


def layer_of(parameter: str) -> str:
    first, *rest = parameter.split(".")
    return f"{first}.{rest[0]}" if rest and rest[0].isdecimal() else first


def gradients_of(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    return [each.grad for each in parameters if each.grad is not None]
