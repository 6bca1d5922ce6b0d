"""The encoder block as plain mathematics: textbook formulas, no modules, nothing fused.

The fast modules are tested against this reference: Dosovitskiy et al. 2021 (arXiv:2010.11929),
equations 2 and 3, without biases or learned normalization, and with GELU's tanh form (the model's
default is the exact GELU).
"""

import math

import torch
from torch import Tensor


def layer_norm(x: Tensor, eps: float = 1e-5) -> Tensor:
    """Compute (x − mean) / √(var + eps) over the last axis, with the population variance."""
    centered = x - x.mean(dim=-1, keepdim=True)
    variance = centered.square().mean(dim=-1, keepdim=True)
    return centered / torch.sqrt(variance + eps)


def gelu_tanh(x: Tensor) -> Tensor:
    """Compute the tanh form of GELU (Hendrycks & Gimpel 2016, arXiv:1606.08415, section 2)."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softmax(x: Tensor) -> Tensor:
    """Compute exp(x) / Σ exp(x) over the last axis.

    Subtracting the maximum first prevents overflow and does not change the result.
    """
    exponent = torch.exp(x - x.amax(dim=-1, keepdim=True))
    return exponent / exponent.sum(dim=-1, keepdim=True)


def self_attention(
    x: Tensor, w_q: Tensor, w_k: Tensor, w_v: Tensor, w_o: Tensor, num_heads: int
) -> Tensor:
    """Apply multi-head self-attention: (B,T,D) → (B,T,D).

    Every weight is (D,D), applied as x @ w.
    """
    head_dim = x.shape[-1] // num_heads
    heads = []
    for h in range(num_heads):
        part = slice(h * head_dim, (h + 1) * head_dim)
        # (B,T,Dh)
        q = x @ w_q[:, part]
        k = x @ w_k[:, part]
        v = x @ w_v[:, part]
        attention = softmax(q @ k.transpose(-2, -1) / math.sqrt(head_dim))  # (B,T,T)
        heads.append(attention @ v)
    return torch.cat(heads, dim=-1) @ w_o


def encoder_block(
    x: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    w_v: Tensor,
    w_o: Tensor,
    w_mlp1: Tensor,
    w_mlp2: Tensor,
    num_heads: int,
) -> Tensor:
    """Apply one pre-LN encoder block: (B,T,D) → (B,T,D), with w_mlp1 (D,F) and w_mlp2 (F,D)."""
    x = x + self_attention(layer_norm(x), w_q, w_k, w_v, w_o, num_heads)
    return x + gelu_tanh(layer_norm(x) @ w_mlp1) @ w_mlp2
