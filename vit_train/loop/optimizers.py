"""The optimizers, built from their settings: AdamW, Muon and SGD.

Muon, from Jordan et al. 2024 (https://kellerjordan.github.io/posts/muon/), replaces the momentum of
each matrix with a nearly orthogonal matrix. Muon's step size is that of Liu et al. 2025
(arXiv:2502.16982), so that Muon can share AdamW's learning rate and weight decay.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from vit_train.config.training import AdamWConfig, MuonConfig, OptimConfig, SgdConfig
from vit_train.loop.device import Precision, trained_weights
from vit_train.loop.workers import ONE_WORKER, Workers


class Optimizer(torch.optim.Optimizer):
    """An optimizer that can use worker threads and states its moments.

    Any other of PyTorch's optimizers can be used, too, if its state consists of tensors. A
    parameter group may have an `lr_scale`, which multiplies the scheduled learning rate.
    """

    # The names of its state tensors, in each parameter's shape; "step" is a scalar.
    moments: ClassVar[Collection[str]]
    # Worker threads for independent parts of a step.
    workers = ONE_WORKER
    # If true, matrix products use bf16 where that is precise enough.
    in_bf16 = False


# The decay rate of AdamW's moving average of gradients.
BETA1 = 0.9


class AdamW(torch.optim.AdamW, Optimizer):
    """PyTorch's AdamW (Loshchilov & Hutter 2019)."""

    moments = ("step", "exp_avg", "exp_avg_sq")


def make_adamw(
    model: nn.Module, config: AdamWConfig, elsewhere: Collection[nn.Parameter] = ()
) -> list[Optimizer]:
    """Return AdamW for all trained weights except those in `elsewhere`.

    Weight decay applies only to linear and convolution weights or, with `decay_all`, to all
    weights.
    """
    adamw = AdamW(
        groups_of(model, config.weight_decay if config.decay_all else 0.0, elsewhere),
        lr=config.peak_lr,
        betas=(BETA1, config.beta2),
        weight_decay=config.weight_decay,
        fused=True,
        capturable=next(model.parameters()).is_cuda,
    )
    adamw._warned_capturable_if_run_uncaptured = True  # the steps before the capture are meant
    return [adamw]


def groups_of(
    model: nn.Module, other_decay: float, elsewhere: Collection[nn.Parameter] = ()
) -> list[dict[str, Any]]:
    """Return two parameter groups: linear and convolution weights, and all other weights.

    `other_decay` is the weight decay of the second group. The groups contain all trained weights
    except those in `elsewhere`.
    """
    own = [p for p in trained_weights(model) if p not in elsewhere]
    matrices = {
        module.weight for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)
    }
    return [
        {"params": [p for p in own if p in matrices]},
        {"params": [p for p in own if p not in matrices], "weight_decay": other_decay},
    ]


class SGD(torch.optim.SGD, Optimizer):
    """PyTorch's SGD, with momentum buffers from the start, so that a CUDA graph can use them."""

    moments = ("momentum_buffer",)


def make_sgd(model: nn.Module, config: SgdConfig) -> list[Optimizer]:
    """Return SGD for all trained weights, with weight decay for linear and convolution weights."""
    sgd = SGD(
        groups_of(model, other_decay=0.0),
        lr=config.peak_lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        nesterov=config.momentum > 0,
        fused=True,
    )
    for group in sgd.param_groups:
        for weight in group["params"]:
            sgd.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
    return [sgd]


# The quintic a·x + b·x³ + c·x⁵, iterated, maps singular values from [0.0016, 1] to about 1.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
# The root mean square of AdamW's steps, in units of the learning rate, as chosen by Liu et al.
ADAMW_RMS = 0.2


class Muon(Optimizer):
    """Muon with Nesterov momentum and decoupled weight decay, for matrices (A,B).

    The weights of a convolution (A,…) are a matrix with one row for each filter. `weights` maps
    each weight to the number of matrices that are stacked in its rows. The joint projection to
    queries, keys and values, for example, stacks three. The results equal those of torch.optim.Muon
    with adjust_lr_fn="match_rms_adamw" on each matrix, up to rounding, but a CUDA graph can replay
    the steps of this class.
    """

    moments = ("momentum_buffer",)
    _step_supports_amp_scaling = True

    def __init__(
        self,
        weights: Mapping[nn.Parameter, int],
        lr: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        super().__init__(
            list(weights), {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        )
        self.parts = weights
        for weight in weights:
            self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step on the gradients; `closure` is not supported."""
        skip: Tensor | None = getattr(self, "found_inf", None)
        for group in self.param_groups:
            weights = group["params"]
            lr = group["lr"]
            momentum = group["momentum"]
            gradients = [weight.grad for weight in weights]
            moments = [self.state[weight]["momentum_buffer"] for weight in weights]
            if skip is not None:
                lr = lr * (1 - skip)
                # A skipped step takes the momentum as its gradient, so the momentum stays.
                take = skip == 0
                gradients = [g.where(take, m) for g, m in zip(gradients, moments, strict=True)]
            torch._foreach_lerp_(moments, gradients, 1 - momentum)
            steps = torch._foreach_lerp(gradients, moments, momentum)
            self.orthogonalize(weights, steps)
            torch._foreach_mul_(steps, -lr)
            torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
            torch._foreach_add_(weights, steps)

    def orthogonalize(self, weights: Iterable[nn.Parameter], steps: Iterable[Tensor]) -> None:
        """Make all matrices in `steps` nearly orthogonal, and scale them like the steps of AdamW.

        Change `steps` in place. Matrices with more rows than columns are transposed first. All
        matrices of the same shape are computed together, divided among all workers.
        """
        stacks: dict[torch.Size, list[Tensor]] = {}
        for weight, step in zip(weights, steps, strict=True):
            matrices = step.flatten(1).unflatten(0, (self.parts[weight], -1))  # (n,A,B)
            wide = matrices if matrices.shape[1] <= matrices.shape[2] else matrices.mT
            stacks.setdefault(wide.shape[1:], []).append(wide)
        for shape, stack in stacks.items():
            dtype = torch.bfloat16 if self.in_bf16 else stack[0].dtype
            parts = torch.cat(stack).chunk(self.workers.count)
            orthogonal = torch.cat(self.workers.each(partial(newton_schulz, dtype=dtype), parts))
            scaled = orthogonal * (ADAMW_RMS * max(shape) ** 0.5)
            torch._foreach_copy_(stack, scaled.split([len(matrices) for matrices in stack]))


def newton_schulz(matrices: Tensor, dtype: torch.dtype) -> Tensor:
    """Return nearly orthogonal matrices close to `matrices`: (n,A,B) → (n,A,B), A ≤ B.

    For M = U Σ Vᵀ the result is U Σ' Vᵀ. Singular values above 0.16 % of M's norm become about
    0.7 to 1.2; smaller singular values become less than 0.7. The result is computed in `dtype`;
    bf16 is precise enough.
    """
    a, b, c = COEFFICIENTS
    norms = torch.linalg.matrix_norm(matrices, keepdim=True)
    x: Tensor = (matrices / norms.clamp(min=1e-7)).to(dtype)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.to(matrices.dtype)


def make_muon(model: nn.Module, config: MuonConfig) -> list[Optimizer]:
    """Return Muon for the layers of the model's blocks, and AdamW for all other trained weights.

    If the blocks are frozen, return only AdamW. Raise ValueError for a model without linear layers
    or convolutions in blocks.
    """
    # The weight of each layer, with its number of stacked matrices.
    blocks = {
        cast(nn.Parameter, layer.weight): getattr(layer, "stacked", 1)
        for each in model.modules()
        if isinstance(each, nn.ModuleList)
        for layer in each.modules()
        if isinstance(layer, nn.Linear | nn.Conv2d)
    }
    if not blocks:
        raise ValueError("optim=muon needs a model with blocks of layers: use optim=adamw")
    matrices = {weight: parts for weight, parts in blocks.items() if weight.requires_grad}
    if not matrices:
        return make_adamw(model, config)
    muon = Muon(matrices, config.peak_lr, config.momentum, config.weight_decay)
    return [muon, *make_adamw(model, config, elsewhere=matrices)]


def split(group: dict[str, Any], scales: Mapping[nn.Parameter, float]) -> Iterator[dict[str, Any]]:
    """Split a parameter group into groups, each with one factor for the learning rate."""
    parts: dict[float, list[nn.Parameter]] = {}
    for parameter in group["params"]:
        parts.setdefault(scales.get(parameter, 1.0), []).append(parameter)
    for scale, parameters in parts.items():
        yield {**group, "params": parameters, "lr_scale": scale * group.get("lr_scale", 1.0)}


def checks_finite(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if a step whose `found_inf` is 1 changes nothing, as decided on the device.

    The attribute is PyTorch's, whose fused optimizers set it to true.
    """
    return getattr(optimizer, "_step_supports_amp_scaling", False)


class Optimizers:
    """The optimizers of one model, each with its own parameters.

    `scales` maps parameters to factors of the learning rate; the factor of any other parameter is
    1. Raises ValueError unless each of the `parameters` belongs to exactly one optimizer.
    """

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        parameters: Iterable[nn.Parameter],
        scales: Mapping[nn.Parameter, float],
    ) -> None:
        self.optimizers = optimizers
        # True if a CUDA graph can take these optimizers' steps.
        self.capturable = all(map(checks_finite, optimizers)) and all(
            group.get("capturable", True) for each in optimizers for group in each.param_groups
        )
        for optimizer in optimizers:
            optimizer.param_groups = [
                part for group in optimizer.param_groups for part in split(group, scales)
            ]
            for group in optimizer.param_groups:
                if checks_finite(optimizer) and group["params"][0].is_cuda:
                    # A tensor, because a CUDA graph can read it.
                    group["lr"] = torch.tensor(group["lr"], device=group["params"][0].device)
        owned = sorted(id(p) for optimizer in optimizers for p in parameters_of(optimizer))
        if owned != sorted(map(id, parameters)):
            raise ValueError("each trained parameter must belong to exactly one optimizer")

    def use(self, workers: Workers, precision: Precision) -> None:
        """Use these worker threads for independent parts of a step.

        Optimizers that can compute in bf16 do so if `precision` allows it.
        """
        for optimizer in self.optimizers:
            if isinstance(optimizer, Optimizer):
                optimizer.workers = workers
                optimizer.in_bf16 = precision.allows_bf16

    def step(self, lr: Tensor, finite: Tensor) -> None:
        """Step all optimizers, but only if `finite`, a scalar tensor, is true.

        The learning rate of each group is `lr`, a scalar tensor, times the group's `lr_scale`. A
        group whose learning rate is a tensor gets it on the device. PyTorch's fused optimizers and
        Muon check `finite` on the device. For other optimizers, this function waits for the device.
        """
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                scaled = lr * group["lr_scale"]
                if isinstance(group["lr"], Tensor):
                    group["lr"].copy_(scaled)
                else:
                    group["lr"] = float(scaled)
            if checks_finite(optimizer):
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
    optimizer: torch.optim.Optimizer, parameter: nn.Parameter, given: Mapping[str, Tensor]
) -> None:
    """Raise ValueError unless the moments `given` for a parameter fit it.

    An optimizer that does not state its `moments` may have any.
    """
    stated = getattr(optimizer, "moments", None)
    if stated is None:
        return
    # Muon has its moments from the start.
    if given.keys() != set(stated) and (given or parameter in optimizer.state):
        raise ValueError(
            f"it has the optimizer moments {', '.join(given) or 'none'}, but "
            f"{type(optimizer).__name__} has {', '.join(sorted(stated))}"
        )
    for name, moment in given.items():
        shape = torch.Size() if name == "step" else parameter.shape
        if moment.shape != shape or not moment.is_floating_point():
            raise ValueError(
                f"the optimizer moment {name} does not have the shape of its parameter"
            )


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def rate_scales(model: nn.Module, config: OptimConfig) -> dict[nn.Parameter, float]:
    """Return a factor for the learning rate of each trained parameter.

    layer_decay sets the factors of the layers in the model's `parameters_by_layer`; head_lr_scale
    is the factor of modules with `is_head`. Raise ValueError if the model has no layers for
    layer_decay, or no head for head_lr_scale.
    """
    scales = dict.fromkeys(trained_weights(model), 1.0)
    layer_decay = config.value("layer_decay")
    head_lr_scale = config.value("head_lr_scale")
    if layer_decay != 1:
        network: Any = next((m for m in model.modules() if hasattr(m, "parameters_by_layer")), None)
        if network is None:
            raise ValueError(
                "optim.layer_decay needs a Vision Transformer: set optim.layer_decay=1"
            )
        # Parameters outside the layers come after them and keep the full rate.
        for distance, layer in enumerate(reversed(network.parameters_by_layer()), start=1):
            scales |= {p: layer_decay**distance for p in layer if p in scales}
    if head_lr_scale != 1:
        heads = [each for each in model.modules() if getattr(each, "is_head", False)]
        if not heads:
            raise ValueError(
                f"optim.head_lr_scale={head_lr_scale} needs a model with a head: set "
                "optim.head_lr_scale=1"
            )
        parameters = (p for head in heads for p in head.parameters() if p in scales)
        scales |= {p: scales[p] * head_lr_scale for p in parameters}
    return scales
