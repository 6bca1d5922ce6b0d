"""LayerNorm, GELU, stochastic depth and the MLP, written out.

LayerNorm and GELU are autograd Functions with hand-derived backward passes: as chains of
elementwise operations autograd would keep every intermediate result, and each of the two would
cost about 30 % of the training speed.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vit_train.model.functional import gelu_tanh
from vit_train.rng import PER_IMAGE, bernoulli


class LayerNormFunction(torch.autograd.Function):
    """y = x̂ · w + b with x̂ = (x − μ)/σ, where μ, σ² are the mean and variance over D values.

    Backward. With g = ∂L/∂x̂ = ∂L/∂y · w, and since
        ∂x̂ᵢ/∂xⱼ = (δᵢⱼ − 1/D − x̂ᵢ x̂ⱼ/D) / σ
    (the 1/D comes from μ; x̂ᵢx̂ⱼ/D from ∂σ/∂xⱼ = x̂ⱼ/D), the sum over i is
        ∂L/∂xⱼ = (gⱼ − mean(g) − x̂ⱼ · mean(g · x̂)) / σ.
    The parameters collect over all other axes: ∂L/∂w = Σ ∂L/∂y · x̂, ∂L/∂b = Σ ∂L/∂y.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        # Two passes over rows that stay in the cache; torch.var_mean is five times slower on a CPU.
        normalised = x - x.mean(dim=-1, keepdim=True)
        inverse_std = (normalised * normalised).mean(dim=-1, keepdim=True).add_(eps).rsqrt_()
        normalised.mul_(inverse_std)
        ctx.save_for_backward(normalised, inverse_std, weight)
        return torch.addcmul(bias, normalised, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        (grad,) = grad_outputs
        normalised, inverse_std, weight = ctx.saved_tensors
        rows, dim = grad.reshape(-1, grad.shape[-1]), grad.shape[-1]
        along_normalised = grad * normalised
        grad_weight = along_normalised.reshape(-1, dim).sum(0)
        grad_bias = rows.sum(0)
        # mean(g) and mean(g · x̂) are products with w, so g itself need not be kept apart.
        mean_g = (grad @ weight).unsqueeze(-1).div_(dim)
        mean_gx = (along_normalised @ weight).unsqueeze(-1).div_(dim)
        grad_x = torch.mul(grad, weight, out=along_normalised).sub_(mean_g)
        grad_x.addcmul_(normalised, mean_gx, value=-1).mul_(inverse_std)
        return grad_x, grad_weight, grad_bias, None


class GELUFunction(torch.autograd.Function):
    """y = x · Φ(x), Φ the normal distribution function (Hendrycks & Gimpel 2016).

    Φ(x) = (1 + erf(x/√2))/2 and Φ'(x) = φ(x) = exp(−x²/2)/√(2π), so by the product rule
        ∂y/∂x = Φ(x) + x · φ(x),
    which is saved in place of x: forward has erf(x/√2) at hand, backward is one multiplication.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        scaled = x * math.sqrt(0.5)
        erf = scaled.erf()
        half = x * 0.5
        activated = torch.addcmul(half, half, erf)
        if ctx.needs_input_grad[0]:
            # exp(−x²/2) as a power of two, which is computed three times as fast.
            gauss = scaled.mul_(scaled).mul_(-math.log2(math.e)).exp2_()
            slope = gauss.mul_(half).mul_(2 / math.sqrt(2 * math.pi))  # x · φ(x)
            ctx.save_for_backward(slope.add_(erf, alpha=0.5).add_(0.5))
        return activated

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        (grad,) = grad_outputs
        (slope,) = ctx.saved_tensors
        derivative: Tensor = grad * slope
        return derivative


def upcast(x: Tensor) -> Tensor:
    """Half precision as float32, as PyTorch computes these functions inside; others unchanged."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def scratch_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """LayerNorm over the last axis, in x's own precision."""
    normalised: Tensor = LayerNormFunction.apply(upcast(x), upcast(weight), upcast(bias), eps)
    return normalised.to(x.dtype)


def fused_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, weight.shape, weight, bias, eps)


def scratch_gelu(x: Tensor) -> Tensor:
    """Exact GELU, in x's own precision."""
    activated: Tensor = GELUFunction.apply(upcast(x))
    return activated.to(x.dtype)


def fused_gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


LAYER_NORMS: dict[str, Callable[[Tensor, Tensor, Tensor, float], Tensor]] = {
    "scratch": scratch_layer_norm,
    "fused": fused_layer_norm,
}
# By the activation and by who computes it; the tanh form, for old weights, is the textbook's.
GELUS: dict[tuple[str, str], Callable[[Tensor], Tensor]] = {
    ("gelu", "scratch"): scratch_gelu,
    ("gelu", "fused"): F.gelu,
    ("gelu_tanh", "scratch"): gelu_tanh,
    ("gelu_tanh", "fused"): fused_gelu_tanh,
}


class LayerNorm(nn.Module):
    """Layer normalisation of the last axis (Ba et al. 2016), scale and shift learned or not."""

    weight: Tensor
    bias: Tensor

    def __init__(
        self, dim: int, kernels: str = "scratch", eps: float = 1e-5, affine: bool = True
    ) -> None:
        super().__init__()
        for name, value in (("weight", torch.ones(dim)), ("bias", torch.zeros(dim))):
            if affine:
                self.register_parameter(name, nn.Parameter(value))
            else:
                self.register_buffer(name, value, persistent=False)
        self.eps = eps
        self.normalise = LAYER_NORMS[kernels]

    def forward(self, x: Tensor) -> Tensor:
        return self.normalise(x, self.weight, self.bias, self.eps)


class Dropout(nn.Module):
    """Values are left out with chance `rate`, the others scaled by 1/(1 − rate) (Hinton 2012)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        if PER_IMAGE.generators is None:
            return F.dropout(x, self.rate)
        return x * bernoulli(x, 1 - self.rate).div_(1 - self.rate)


class DropPath(nn.Module):
    """Stochastic depth (Huang et al. 2016): a sample's branch is left out with chance `rate`.

    The kept branches are scaled by 1/(1 − rate), so that the expectation does not change.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.rate == 0:
            return x
        keep = bernoulli(x[:, :1, :1], 1 - self.rate)
        return x * keep.div_(1 - self.rate)


class Head(nn.Linear):
    """Features (B,D) → logits (B,K), in the weights' own precision under autocast, too.

    In half precision two classes of some images get the same logit, and a tie is no answer.
    """

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.to(self.weight.dtype))


class Mlp(nn.Module):
    """Two linear layers with a GELU between: (B,T,D) → (B,T,F) → (B,T,D)."""

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        dropout: float,
        kernels: str,
        activation: str = "gelu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim, bias=bias)
        self.fc2 = nn.Linear(hidden_dim, dim, bias=bias)
        self.gelu = GELUS[activation, kernels]
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.dropout(self.gelu(self.fc1(x)))
        return self.dropout(self.fc2(hidden))  # type: ignore[no-any-return]
