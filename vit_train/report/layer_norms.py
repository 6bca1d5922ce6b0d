"""How large the weights and the gradients of each layer are."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


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
        torch.stack([norm(parameters), norm([p.grad for p in parameters if p.grad is not None])])
        for parameters in layers.values()
    ]
    if not pairs:
        return {}
    values = torch.stack(pairs).tolist()
    return {layer: (weight, grad) for layer, (weight, grad) in zip(layers, values, strict=True)}


def layer_of(parameter: str) -> str:
    first, *rest = parameter.split(".")
    return f"{first}.{rest[0]}" if rest and rest[0].isdecimal() else first


def norm(tensors: Iterable[Tensor]) -> Tensor:
    norms = torch._foreach_norm([each.detach() for each in tensors])
    together: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return together
