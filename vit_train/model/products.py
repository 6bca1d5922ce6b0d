"""Linear layers; on a CPU, their float32 products are computed by the faster of two libraries.

PyTorch computes the products of float32 matrices by Intel's MKL. On CPUs of other makers, MKL
leaves AVX-512 unused. oneDNN, which is a part of PyTorch as well, uses it on all CPUs.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.compiler import is_compiling

from vit_train.base.machine import cpu_identity

# AMD's family of Zen 5, the first one whose AVX-512 units have their full width.
ZEN_5 = 26
HAS_ONEDNN = torch.backends.mkldnn.is_available()


@cache
def uses_onednn() -> bool:
    """Return True if oneDNN is faster on this CPU, because MKL leaves its AVX-512 unused.

    Where AVX-512 has half its width, as on Zen 4, oneDNN is no faster.
    """
    has_both = torch.backends.mkl.is_available() and HAS_ONEDNN
    has_avx512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
    maker, family = cpu_identity()
    return has_both and has_avx512 and maker == "AuthenticAMD" and family >= ZEN_5


def onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x weightᵀ + bias: (N,I), (O,I), (O) → (N,O)."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]


def flops(x: Sequence[int], weight: Sequence[int], *_: Any, **__: Any) -> int:
    """Count the FLOPs of `onednn_product`, given the shapes of x and weight."""
    return 2 * math.prod(x) * weight[0]


# For `FlopCounterMode`, which does not know oneDNN's product.
COUNTED = {torch.ops.mkldnn._linear_pointwise: flops} if HAS_ONEDNN else {}


class OneDnnLinear(torch.autograd.Function):
    """y = x wᵀ + b, so ∂L/∂x = g w, ∂L/∂w = gᵀ x and ∂L/∂b = Σ g, with g = ∂L/∂y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return onednn_product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        rows = grad.flatten(0, -2)  # (N,O)
        grad_x = onednn_product(grad, weight.T) if for_x else None
        grad_weight = onednn_product(rows.T, x.flatten(0, -2).T) if for_weight else None
        return grad_x, grad_weight, rows.sum(0) if for_bias else None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply a linear layer, as `F.linear` does: x (…,I), weight (O,I), bias (O) → (…,O)."""
    # The number of images comes last: a program that is being exported has no fixed number.
    if (
        is_compiling()
        or not uses_onednn()
        or torch.is_autocast_enabled("cpu")
        or x.device.type != "cpu"
        or not x.dtype == weight.dtype == torch.float32
        or x.numel() == 0
    ):
        return F.linear(x, weight, bias)
    return OneDnnLinear.apply(x, weight, bias)  # type: ignore[no-any-return]


class Linear(nn.Linear):
    """A linear layer like `nn.Linear`, computed by the faster library."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)
