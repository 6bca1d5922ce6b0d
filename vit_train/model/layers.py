"""LayerNorm, activations, dropout, stochastic depth, the MLP and the linear head."""

import math
from collections.abc import Callable, Sized
from functools import partial
from itertools import pairwise, starmap
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from vit_train.base.rng import PER_IMAGE, bernoulli, uniform
from vit_train.config.fields import chosen
from vit_train.config.model import ViTConfig
from vit_train.model.functional import gelu_tanh
from vit_train.model.products import Linear


def channels_last(images: Tensor) -> Tensor:
    """Return images (B,C,H,W) with a pixel's channels side by side in memory.

    On a CPU, this makes the convolutions of a network 1.1 to 1.4 times as fast.
    """
    return images.contiguous(memory_format=torch.channels_last)


class LayerNormFunction(torch.autograd.Function):
    """LayerNorm: y = x̂ · w + b, x̂ = (x − μ)/σ, with mean μ and variance σ² over the D values.

    Backward. With g = ∂L/∂x̂ = ∂L/∂y · w, and since
        ∂x̂ᵢ/∂xⱼ = (δᵢⱼ − 1/D − x̂ᵢ x̂ⱼ/D) / σ
    (the 1/D comes from μ; x̂ᵢx̂ⱼ/D from ∂σ/∂xⱼ = x̂ⱼ/D), the sum Σᵢ gᵢ ∂x̂ᵢ/∂xⱼ is
        ∂L/∂xⱼ = (gⱼ − mean(g) − x̂ⱼ · mean(g · x̂)) / σ.
    The gradients of w and b are sums over all other axes: ∂L/∂w = Σ ∂L/∂y · x̂, ∂L/∂b = Σ ∂L/∂y.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        # Two passes over rows that stay in the cache: on a CPU, torch.var_mean is five times
        # slower.
        normalized = x - x.mean(dim=-1, keepdim=True)
        inverse_std = (normalized * normalized).mean(dim=-1, keepdim=True).add_(eps).rsqrt_()
        normalized.mul_(inverse_std)
        ctx.save_for_backward(normalized, inverse_std, weight)
        return torch.addcmul(bias, normalized, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        normalized, inverse_std, weight = ctx.saved_tensors
        dim = grad.shape[-1]
        grad_times_normalized = grad * normalized
        grad_weight = grad_times_normalized.reshape(-1, dim).sum(0)
        grad_bias = grad.reshape(-1, dim).sum(0)
        # mean(g) and mean(g · x̂) are matrix products with w, so g needs no tensor of its own.
        mean_g = (grad @ weight).unsqueeze(-1).div_(dim)
        mean_gx = (grad_times_normalized @ weight).unsqueeze(-1).div_(dim)
        # From here on, this memory holds the result.
        grad_x = torch.mul(grad, weight, out=grad_times_normalized).sub_(mean_g)
        grad_x.addcmul_(normalized, mean_gx, value=-1).mul_(inverse_std)
        return grad_x, grad_weight, grad_bias, None


class GELUFunction(torch.autograd.Function):
    """GELU: y = x · Φ(x), with the normal distribution function Φ (Hendrycks & Gimpel 2016).

    Φ(x) = (1 + erf(x/√2))/2 and Φ'(x) = φ(x) = exp(−x²/2)/√(2π), so by the product rule
        ∂y/∂x = Φ(x) + x · φ(x).
    This derivative is saved instead of x, because forward has computed erf(x/√2) anyway; backward
    is then a single multiplication.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        scaled = x * math.sqrt(0.5)
        erf = scaled.erf()
        half = x * 0.5
        activated = torch.addcmul(half, half, erf)
        if ctx.needs_input_grad[0]:
            half_square = scaled.mul_(scaled)
            if x.device.type == "cpu":  # there, exp2 is three times as fast as exp
                gauss = half_square.mul_(-math.log2(math.e)).exp2_()  # exp(−x²/2)
            else:
                gauss = half_square.neg_().exp_()
            slope = gauss.mul_(half).mul_(2 / math.sqrt(2 * math.pi))  # x · φ(x)
            ctx.save_for_backward(slope.add_(erf, alpha=0.5).add_(0.5))
        return activated

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (slope,) = ctx.saved_tensors
        return grad * slope  # type: ignore[no-any-return]


def upcast(x: Tensor) -> Tensor:
    """Convert half precision to float32, as PyTorch's own kernels do; keep all other types."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def scratch_layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Apply LayerNorm over the last axis, and return the result in the precision of x."""
    return LayerNormFunction.apply(*map(upcast, (x, weight, bias)), eps).to(x.dtype)  # type: ignore[no-any-return]


def scratch_gelu(x: Tensor) -> Tensor:
    """Apply the exact GELU, and return the result in the precision of x."""
    return GELUFunction.apply(upcast(x)).to(x.dtype)  # type: ignore[no-any-return]


class LayerNorm(nn.Module):
    """Layer normalization of the last axis (Ba et al. 2016)."""

    def __init__(self, dim: int, kernels: str = "scratch", eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.kernels = kernels
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if self.kernels == "scratch":
            return scratch_layer_norm(x, self.weight, self.bias, self.eps)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


def norms_of(config: ViTConfig) -> Callable[[int], LayerNorm]:
    """Return a function that makes a LayerNorm of a given width, with the config's settings."""
    return partial(LayerNorm, kernels=config.kernels, eps=config.eps)


class Dropout(nn.Module):
    """Dropout (Hinton et al. 2012): sets each value to 0 with probability `rate`.

    The other values are scaled by 1/(1 − rate), so that the expectation does not change.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    @property
    def is_off(self) -> bool:
        return not self.training or self.rate == 0

    def forward(self, x: Tensor) -> Tensor:
        if self.is_off:
            return x
        if PER_IMAGE.generators is None:
            return F.dropout(x, self.rate)
        return x * bernoulli(x, 1 - self.rate) / (1 - self.rate)  # bf16 would round 1/(1 − rate)


class LayerScale(nn.Module):
    """LayerScale (Touvron et al. 2021): a learned factor for each channel, initially `initial`."""

    def __init__(self, dim: int, initial: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), initial))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class DropPath(Dropout):
    """Stochastic depth (Huang et al. 2016): drops an image's branch with probability `rate`.

    A branch is the output of f in x + f(x). The branches that are kept are scaled by 1/(1 − rate),
    so that the expectation does not change. As in timm, images are drawn separately, and a model's
    rates rise from 0 (in the paper, from 1/L of the last one).
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.is_off:
            return x
        keep = bernoulli(upcast(x[:, :1, :1]), 1 - self.rate)
        return (x * keep.div_(1 - self.rate)).to(x.dtype)


class PatchDropout(Dropout):
    """PatchDropout (Liu et al. 2023, arXiv:2208.07220): drops a share `rate` of an image's patches.

    With `epochs`, only the first `epochs` epochs drop patches.
    """

    def __init__(self, rate: float, epochs: int | None) -> None:
        super().__init__(rate)
        self.epochs = epochs

    def set_epoch(self, epoch: int) -> bool:
        """Prepare for an epoch, counted from 0; return True if the number of patches changes."""
        ends = bool(self.rate) and self.epochs is not None and epoch >= self.epochs
        if ends:
            self.rate = 0.0
        return ends

    def forward(self, patches: Tensor) -> Tensor | None:  # type: ignore[override]
        """Choose patches of (B,N,D) at random; return their indices (B,V), or None for all."""
        if self.is_off:
            return None
        keep = max(1, round(patches.shape[1] * (1 - self.rate)))
        return uniform(patches.shape[:2], patches.device).topk(keep, sorted=False).indices


def thirds_of(layers: Sized) -> list[slice]:
    """Divide layers into thirds; if they differ in length, the earlier ones are longer."""
    ends = [math.ceil(len(layers) * part / 3) for part in range(4)]
    return list(starmap(slice, pairwise(ends)))


def in_thirds(layers: nn.Sequential | nn.ModuleList, x: Tensor) -> list[Tensor]:
    """Apply layers in turn; return the features after each third of them."""
    features = []
    for third in thirds_of(layers):
        for layer in layers[third]:
            x = layer(x)
        features.append(x)
    return features


def init_normal(parameter: nn.Parameter, std: float) -> None:
    """Fill a parameter, in place, with draws from N(0, std²).

    Do nothing on the meta device, where tensors have no values. Drawing on the meta device would
    make PyTorch load its compiler, which takes two seconds.
    """
    if not parameter.is_meta:
        nn.init.normal_(parameter, std=std)


class QueryKeyValue(Linear):
    """Joint projection to queries, keys and values: three matrices stacked in one."""

    stacked = 3  # for Muon: see loop/optimizers.py


class PreHead(nn.Sequential):
    """Layers between the encoder and the linear classifier."""

    is_head = True  # for optim.head_lr_scale


class Head(Linear):
    """Linear classifier, features (B,D) → logits (B,K), in the precision of the weights.

    Autocast does not lower the precision. In half precision, two classes could get the same logit
    for some images, and the prediction would be undecided.
    """

    is_head = True

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.to(self.weight.dtype))


def swiglu(x: Tensor) -> Tensor:
    """Multiply the first half of the channels by SiLU of the second half.

    From Shazeer 2020 (arXiv:2002.05202).
    """
    value, gate = x.chunk(2, dim=-1)
    return value * F.silu(gate)


# The activations by name: PyTorch's functions and, for kernels=scratch, this package's own. To add
# one, add a line to ACTIVATIONS, and its name to GATED if it halves the number of channels.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "swiglu": swiglu,
}
SCRATCH: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": scratch_gelu,
    "gelu_tanh": lambda x: gelu_tanh(upcast(x)).to(x.dtype),
}
GATED = {"swiglu"}


class Mlp(nn.Module):
    """Two linear layers with an activation between: (B,T,D) → (B,T,F) → (B,T,D).

    For a gated activation, the first layer has 2·F outputs. Raises ValueError for an unknown
    activation.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        known = ACTIVATIONS | (SCRATCH if config.kernels == "scratch" else {})
        self.activation = chosen(known, "model.activation", config.activation)
        width = config.hidden_dim * (2 if config.activation in GATED else 1)
        self.fc1 = Linear(config.embed_dim, width, config.mlp_bias)
        self.fc2 = Linear(config.hidden_dim, config.embed_dim, config.mlp_bias)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.dropout(self.activation(self.fc1(x)))
        return self.dropout(self.fc2(hidden))  # type: ignore[no-any-return]
