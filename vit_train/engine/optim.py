"""The optimizers of a run, stepped as one."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from vit_train.engine.config import AdamWConfig, OptimConfig
from vit_train.engine.precision import Precision
from vit_train.engine.workers import ONE_WORKER, Workers


class Optimizer(torch.optim.Optimizer):
    """Interface of an optimizer that can resume.

    A parameter group may have an `lr_scale`, by which the scheduled learning rate is multiplied.
    """

    # The names of what it keeps for each parameter, in the parameter's shape; "step" is a scalar.
    moments: ClassVar[frozenset[str]]
    # Threads for independent parts of a step.
    workers = ONE_WORKER
    # Whether matrix products may be computed in bf16, where that is precise enough.
    in_bf16 = False


class AdamW(torch.optim.AdamW, Optimizer):
    """PyTorch's AdamW (Loshchilov & Hutter 2019)."""

    moments = frozenset({"step", "exp_avg", "exp_avg_sq"})


def make_adamw(
    model: nn.Module, config: AdamWConfig, elsewhere: Collection[nn.Parameter] = ()
) -> AdamW:
    """Return an AdamW optimizer of all trained weights that are not `elsewhere`.

    It decays the linear and convolution weights and, with `decay_all`, all others.
    """
    own = [p for p in model.parameters() if p.requires_grad and p not in elsewhere]
    matrices = {
        module.weight for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)
    }
    groups: list[dict[str, Any]] = [
        {"params": [p for p in own if p in matrices]},
        {
            "params": [p for p in own if p not in matrices],
            "weight_decay": config.weight_decay if config.decay_all else 0.0,
        },
    ]
    device = next(model.parameters()).device
    optimizer = AdamW(
        groups,
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
        fused=True,
        capturable=device.type == "cuda",
    )
    for group in optimizer.param_groups:
        group["lr"] = rate_on(device, config.lr)
    return optimizer


def rate_on(device: torch.device, lr: float) -> float | Tensor:
    """Return a learning rate as a number or, for a GPU, as a tensor that a CUDA graph can read."""
    return torch.tensor(lr, device=device) if device.type == "cuda" else lr


NO_SCALES: Mapping[nn.Parameter, float] = {}


def split(group: dict[str, Any], scales: Mapping[nn.Parameter, float]) -> Iterator[dict[str, Any]]:
    """Yield a parameter group's parts, each of one scale of the learning rate."""
    parts: dict[float, list[nn.Parameter]] = {}
    for parameter in group["params"]:
        parts.setdefault(scales.get(parameter, 1.0), []).append(parameter)
    for scale, parameters in parts.items():
        lr = group["lr"].clone() if isinstance(group["lr"], Tensor) else group["lr"]
        scaled = scale * group.get("lr_scale", 1.0)
        yield {**group, "params": parameters, "lr": lr, "lr_scale": scaled}


def decides_on_device(optimizer: Optimizer) -> bool:
    """Check for an optimizer that skips a step by itself if its `found_inf` is not 0."""
    return getattr(optimizer, "_step_supports_amp_scaling", False)


class Optimizers:
    """Optimizers side by side, each with its own parameters of one model.

    `scales` maps parameters to factors of the learning rate, which are 1 for all others. Raises
    ValueError unless each of the `parameters` belongs to exactly one optimizer.
    """

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        parameters: Iterable[nn.Parameter],
        scales: Mapping[nn.Parameter, float] = NO_SCALES,
    ) -> None:
        self.optimizers = optimizers
        for optimizer in optimizers if scales else ():
            groups = optimizer.param_groups
            optimizer.param_groups = [part for group in groups for part in split(group, scales)]
        owned = sorted(id(p) for group in self.groups for p in group["params"])
        if owned != sorted(map(id, parameters)):
            raise ValueError("each parameter of the model must belong to exactly one optimizer")

    def use(self, workers: Workers, precision: Precision) -> None:
        """Compute independent parts of a step in these worker threads, in a run's precision."""
        for optimizer in self.optimizers:
            optimizer.workers = workers
            optimizer.in_bf16 = precision.name == "bf16" or precision.device.type == "cuda"

    @property
    def capturable(self) -> bool:
        """Check that a CUDA graph can take these optimizers' steps."""
        return all(map(decides_on_device, self.optimizers)) and all(
            isinstance(group["lr"], Tensor) for group in self.groups
        )

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Return the parameter groups of all optimizers."""
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def set_lr(self, lr: Tensor) -> None:
        """Set the learning rate (), which each group scales by its `lr_scale`.

        A group whose rate is a tensor has it changed on the device.
        """
        for group in self.groups:
            scaled = lr * group.get("lr_scale", 1.0)
            if isinstance(group["lr"], Tensor):
                group["lr"].copy_(scaled)
            else:
                group["lr"] = float(scaled)

    def unscale(self, scaler: torch.amp.GradScaler) -> None:
        for optimizer in self.optimizers:
            scaler.unscale_(optimizer)

    def step(self, finite: Tensor) -> None:
        """Step all optimizers, but only if `finite` () is true.

        PyTorch's fused optimizers decide that on the device; for others this waits for it.
        """
        for optimizer in self.optimizers:
            if decides_on_device(optimizer):
                optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
                optimizer.step()
                del optimizer.found_inf  # type: ignore[attr-defined]
            elif finite:
                optimizer.step()

    def moments(self) -> list[list[dict[str, Tensor]]]:
        """Return, of each optimizer, the moments of each of its parameters, by name."""
        return [
            [dict(optimizer.state.get(parameter, {})) for parameter in parameters_of(optimizer)]
            for optimizer in self.optimizers
        ]

    def restore(self, moments: Sequence[Sequence[dict[str, Tensor]]]) -> None:
        """Restore the moments, but keep the optimizers' own settings.

        Raise ValueError if the moments do not fit these optimizers' parameters.
        """
        for optimizer, own in zip(self.optimizers, moments, strict=True):
            restore_moments(optimizer, own)


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def restore_moments(optimizer: Optimizer, moments: Sequence[dict[str, Tensor]]) -> None:
    """Load the moments of each parameter, but keep the optimizer's own settings.

    A parameter has none before its first step. Raise ValueError if the moments do not fit.
    """
    for parameter, own in zip(parameters_of(optimizer), moments, strict=True):
        # Muon has its moments from the start.
        if own.keys() != optimizer.moments and (own or parameter in optimizer.state):
            raise ValueError("the optimizer's moments belong to another kind of optimizer")
        for name, moment in own.items():
            shape = torch.Size() if name == "step" else parameter.shape
            if moment.shape != shape or not moment.is_floating_point():
                raise ValueError(f"the optimizer's {name} has another shape than its parameter")
    state = {number: own for number, own in enumerate(moments) if own}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


@runtime_checkable
class Layered(Protocol):
    """A network that assigns its parameters to layers, the first of which is the embedding."""

    def parameters_by_layer(self) -> list[list[nn.Parameter]]: ...


def rate_scales(model: nn.Module, config: OptimConfig) -> dict[nn.Parameter, float]:
    """Return the scale of each parameter's learning rate; empty if all have the same.

    Raise ValueError if the model has no such layers.
    """
    scales = dict.fromkeys((p for p in model.parameters() if p.requires_grad), 1.0)
    if config.layer_decay is not None:
        network = next((each for each in model.modules() if isinstance(each, Layered)), None)
        if network is None:
            raise ValueError("optim.layer_decay needs a Vision Transformer")
        # All that is in none of the layers comes after them, and keeps its rate.
        for distance, layer in enumerate(reversed(network.parameters_by_layer()), start=1):
            scales |= {p: config.layer_decay**distance for p in layer if p in scales}
    if config.head_lr_scale != 1:
        heads = [each for each in model.modules() if getattr(each, "is_head", False)]
        if not heads:
            raise ValueError(
                f"optim.head_lr_scale={config.head_lr_scale} needs a model with a head"
            )
        parameters = (p for head in heads for p in head.parameters() if p in scales)
        scales |= {p: scales[p] * config.head_lr_scale for p in parameters}
    return {} if set(scales.values()) == {1.0} else scales
