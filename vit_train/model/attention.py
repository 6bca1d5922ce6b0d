"""Multi-head self-attention (Vaswani et al. 2017, equation 1), with one fused qkv projection."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn


def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ/√Dh) v and the probabilities.

    q (B,H,Q,Dh), k and v (B,H,T,Dh) → (B,H,Q,Dh), (B,H,Q,T).
    """
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
    written path, which is then taken whatever `kernels` says. `queries=Q` asks for the first Q
    tokens only, (B,Q,D): the others are looked at, but do not look.
    """

    def __init__(self, dim: int, num_heads: int, dropout: float, kernels: str) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.attention = ATTENTIONS[kernels]

    def forward(
        self, x: Tensor, need_weights: bool = False, queries: int | None = None
    ) -> tuple[Tensor, Tensor | None]:
        q, k, v = self.project(x, queries)
        heads, weights = attend(q, k, v) if need_weights else (self.attention(q, k, v), None)
        joined = heads.transpose(1, 2).flatten(2)  # (B,Q,D)
        return self.dropout(self.proj(joined)), weights

    def project(self, x: Tensor, queries: int | None) -> tuple[Tensor, ...]:
        """The queries (B,H,Q,Dh), keys and values (B,H,T,Dh)."""
        if queries is None:
            return self.split(self.qkv(x), 3)
        dim = x.shape[-1]
        weight_q, weight_kv = self.qkv.weight.split((dim, 2 * dim))
        bias_q, bias_kv = self.qkv.bias.split((dim, 2 * dim))
        q = F.linear(x[:, :queries], weight_q, bias_q)
        return self.split(q, 1) + self.split(F.linear(x, weight_kv, bias_kv), 2)

    def split(self, joined: Tensor, parts: int) -> tuple[Tensor, ...]:
        """(B,T,parts·D) → `parts` × (B,H,T,Dh)."""
        batch, tokens, _ = joined.shape
        return joined.view(batch, tokens, parts, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind()
