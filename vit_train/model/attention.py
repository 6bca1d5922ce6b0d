"""Multi-head self-attention (Vaswani et al. 2017, equation 1), with one fused qkv projection."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn


def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ/√Dh) v and the probabilities: three (B,H,T,Dh) → (B,H,T,Dh), (B,H,T,T)."""
    # Scaling q touches T·Dh values; scaling the logits would touch T·T.
    logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    probabilities = logits.softmax(dim=-1)
    return probabilities.to(v.dtype) @ v, probabilities


def scratch_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attend(q, k, v)[0]


ATTENTIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "scratch": scratch_attention,
    "fused": F.scaled_dot_product_attention,
}


class Attention(nn.Module):
    """Multi-head self-attention: (B,T,D) → (B,T,D).

    `need_weights=True` returns the probabilities (B,H,T,T) as well; they exist only on the
    written path, which is then taken whatever `kernels` says.
    """

    def __init__(self, dim: int, num_heads: int, dropout: float, kernels: str) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.attention = ATTENTIONS[kernels]

    def forward(self, x: Tensor, need_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        batch, tokens, dim = x.shape
        # (B,T,3D) → (B,T,3,H,Dh) → (3,B,H,T,Dh)
        qkv = self.qkv(x).view(batch, tokens, 3, self.num_heads, dim // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        heads, weights = attend(q, k, v) if need_weights else (self.attention(q, k, v), None)
        joined = heads.transpose(1, 2).reshape(batch, tokens, dim)
        return self.dropout(self.proj(joined)), weights
