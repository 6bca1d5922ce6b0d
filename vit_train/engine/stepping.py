"""The optimizers of a model, which step together, with a learning rate for each layer."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vit_train.engine.config import OptimConfig
from vit_train.engine.optimizers import Optimizer
from vit_train.engine.precision import Precision
from vit_train.engine.workers import Workers


def split(group: dict[str, Any], scales: Mapping[nn.Parameter, float]) -> Iterator[dict[str, Any]]:
    """Split a parameter group into groups, each with one factor for the learning rate."""
    parts: dict[float, list[nn.Parameter]] = {}
    for parameter in group["params"]:
        parts.setdefault(scales.get(parameter, 1.0), []).append(parameter)
    for scale, parameters in parts.items():
        yield {**group, "params": parameters, "lr_scale": scale * group.get("lr_scale", 1.0)}


def decides_on_device(optimizer: Optimizer) -> bool:
    """Return True if the optimizer itself skips a step when its `found_inf` is not 0."""
    return getattr(optimizer, "_step_supports_amp_scaling", False)


class Optimizers:
    """The optimizers of one model, each with its own parameters.

    `scales` maps parameters to factors of the learning rate; the factor of any other parameter is
    1. Raises ValueError unless each of the `parameters` belongs to exactly one optimizer.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        parameters: Iterable[nn.Parameter],
        scales: Mapping[nn.Parameter, float],
    ) -> None:
        self.optimizers = optimizers
        # True if a CUDA graph can take these optimizers' steps.
        self.capturable = all(map(decides_on_device, optimizers))
        for optimizer in optimizers:
            optimizer.param_groups = [
                part for group in optimizer.param_groups for part in split(group, scales)
            ]
            for group in optimizer.param_groups:
                if decides_on_device(optimizer) and group["params"][0].is_cuda:
                    # A tensor, because a CUDA graph can read it.
                    group["lr"] = torch.tensor(group["lr"], device=group["params"][0].device)
        owned = sorted(id(p) for group in self.groups for p in group["params"])
        if owned != sorted(map(id, parameters)):
            raise ValueError("each trained parameter must belong to exactly one optimizer")

    def use(self, workers: Workers, precision: Precision) -> None:
        """Use these worker threads for independent parts of a step.

        Optimizers that can compute in bf16 do so if `precision` allows it.
        """
        for optimizer in self.optimizers:
            optimizer.workers = workers
            optimizer.in_bf16 = precision.allows_bf16

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Return the parameter groups of all optimizers."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def set_lr(self, lr: Tensor) -> None:
        """Set each group's learning rate to `lr`, a scalar tensor, times the group's `lr_scale`.

        A learning rate that is a tensor is changed on the device.
        """
        for group in self.groups:
            scaled = lr * group.get("lr_scale", 1.0)
            if isinstance(group["lr"], Tensor):
                group["lr"].copy_(scaled)
            else:
                group["lr"] = float(scaled)

    def step(self, finite: Tensor) -> None:
        """Step all optimizers, but only if `finite`, a scalar tensor, is true.

        PyTorch's fused optimizers and Muon check `finite` on the device. For other optimizers, this
        function waits for the device.
        """
        for optimizer in self.optimizers:
            if decides_on_device(optimizer):
                optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
                optimizer.step()
                del optimizer.found_inf  # type: ignore[attr-defined]
            elif finite:
                optimizer.step()

    def moments(self) -> list[list[dict[str, Tensor]]]:
        """Return one list per optimizer: for each parameter, a dict from names to moments."""
        return [
            [dict(optimizer.state.get(parameter, {})) for parameter in parameters_of(optimizer)]
            for optimizer in self.optimizers
        ]

    def restore(self, moments: Sequence[Sequence[dict[str, Tensor]]]) -> None:
        """Restore the moments, but keep the optimizers' current settings.

        A parameter that has not been trained yet has no moments. Raise ValueError if the moments do
        not fit the optimizers' parameters.
        """
        for optimizer, own in zip(self.optimizers, moments, strict=True):
            for parameter, given in zip(parameters_of(optimizer), own, strict=True):
                require_moments_of(optimizer, parameter, given)
            state = {number: given for number, given in enumerate(own) if given}
            optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def require_moments_of(
    optimizer: Optimizer, parameter: nn.Parameter, given: Mapping[str, Tensor]
) -> None:
    """Raise ValueError unless the moments `given` for a parameter fit it."""
    # Muon has its moments from the start.
    if given.keys() != optimizer.moments and (given or parameter in optimizer.state):
        raise ValueError("the optimizer moments in the checkpoint belong to a different optimizer")
    for name, moment in given.items():
        shape = torch.Size() if name == "step" else parameter.shape
        if moment.shape != shape or not moment.is_floating_point():
            raise ValueError(
                f"the optimizer moment {name} does not have the shape of its parameter"
            )


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def rate_scales(model: nn.Module, config: OptimConfig) -> dict[nn.Parameter, float]:
    """Return a factor for the learning rate of each trained parameter.

    layer_decay sets the factors of the layers in the model's `parameters_by_layer`; head_lr_scale
    is the factor of modules with `is_head`. Raise ValueError if the model has no layers for
    layer_decay, or no head for head_lr_scale.
    """
    scales = dict.fromkeys((p for p in model.parameters() if p.requires_grad), 1.0)
    if config.layer_decay is not None:
        network: Any = next((m for m in model.modules() if hasattr(m, "parameters_by_layer")), None)
        if network is None:
            raise ValueError(
                "optim.layer_decay needs a Vision Transformer: set optim.layer_decay=null"
            )
        # Parameters outside the layers come after them and keep the full rate.
        for distance, layer in enumerate(reversed(network.parameters_by_layer()), start=1):
            scales |= {p: config.layer_decay**distance for p in layer if p in scales}
    if config.head_lr_scale != 1:
        heads = [each for each in model.modules() if getattr(each, "is_head", False)]
        if not heads:
            raise ValueError(
                f"optim.head_lr_scale={config.head_lr_scale} needs a model with a head: set "
                "optim.head_lr_scale=1"
            )
        parameters = (p for head in heads for p in head.parameters() if p in scales)
        scales |= {p: scales[p] * config.head_lr_scale for p in parameters}
    return scales
