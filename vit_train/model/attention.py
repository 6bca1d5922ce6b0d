"""Multi-head self-attention (Vaswani et al. 2017, equation 1), with one fused qkv projection."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit_train.model.layers import Dropout


def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """softmax(q kᵀ/√Dh + bias) v and the probabilities.

    q (B,H,Q,Dh), k and v (B,H,T,Dh), bias broadcast to (B,H,Q,T) → (B,H,Q,Dh), (B,H,Q,T).
    """
    # Scaling q touches Q·Dh values; scaling the logits would touch Q·T.
    logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    if bias is not None:
        logits = logits + bias
    probabilities = logits.softmax(dim=-1)
    return probabilities.to(v.dtype) @ v, probabilities


def scratch_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    return attend(q, k, v, bias)[0]


def fused_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


ATTENTIONS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]] = {
    "scratch": scratch_attention,
    "fused": fused_attention,
}


def causal(tokens: int, device: torch.device | None = None) -> Tensor:
    """The mask (T,T) of a sequence: each token may look at itself and at those before it."""
    return torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril()


def masked(mask: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A mask (Q,T), True where a query may look, as a bias of 0 and −∞, and who sees anything.

    A softmax over nothing is 0/0. A query that may look nowhere therefore gets no bias here; its
    result is set to 0 afterwards, in value and gradient, by `sees` (Q,1).
    """
    sees = mask.any(dim=-1, keepdim=True)
    allowed = mask | ~sees
    bias = torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, float("-inf"))
    return bias, sees


class Attention(nn.Module):
    """Multi-head attention of tokens to each other, or to a `context` (B,T',D): (B,T,D) → (B,T,D).

    `mask` (T,T) is True where a token (row) may look at another (column), `causal` for one; a row
    without any True gives zeros. `need_weights=True` returns the probabilities (B,H,T,T) as well;
    they exist only on the written path, which is then taken whatever `kernels` says.
    `num_queries=Q` asks for the first Q tokens only, (B,Q,D): the others are looked at, but do not
    look.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        dropout: float,
        kernels: str,
        qkv_bias: bool = True,
        proj_bias: bool = True,
        relative: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim, bias=proj_bias)
        self.relative = relative
        self.dropout = Dropout(dropout)
        self.attention = ATTENTIONS[kernels]

    def forward(
        self,
        x: Tensor,
        need_weights: bool = False,
        num_queries: int | None = None,
        mask: Tensor | None = None,
        context: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        q, k, v = self.project(x, num_queries, context)
        bias = sees = None
        if self.relative is not None:
            bias = self.relative(q * q.shape[-1] ** -0.5)
        if mask is not None:
            blocked, sees = masked(mask[:num_queries], q.dtype)
            bias = blocked if bias is None else bias + blocked
        heads, weights = (
            attend(q, k, v, bias) if need_weights else (self.attention(q, k, v, bias), None)
        )
        x = self.dropout(self.merge_heads(heads))
        if sees is not None:  # not before the projection, which has a bias
            x = x.masked_fill(~sees, 0)
            weights = None if weights is None else weights.masked_fill(~sees, 0)
        return x, weights

    def project(
        self, x: Tensor, num_queries: int | None = None, context: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """The queries (B,H,Q,Dh), keys and values (B,H,T,Dh)."""
        if num_queries is None and context is None:
            return self.split_heads(self.qkv(x), 3)
        seen = x if context is None else context
        return self.project_queries(x[:, :num_queries]), *self.project_keys_values(seen)

    def project_queries(self, x: Tensor) -> Tensor:
        """(B,Q,D) → (B,H,Q,Dh)."""
        dim = x.shape[-1]
        bias = None if self.qkv.bias is None else self.qkv.bias[:dim]
        return self.split_heads(F.linear(x, self.qkv.weight[:dim], bias), 1)[0]

    def project_keys_values(self, x: Tensor) -> tuple[Tensor, ...]:
        """(B,T,D) → the keys and the values, (B,H,T,Dh) each."""
        dim = x.shape[-1]
        bias = None if self.qkv.bias is None else self.qkv.bias[dim:]
        return self.split_heads(F.linear(x, self.qkv.weight[dim:], bias), 2)

    def look_up(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Tokens (B,Q,D) that look at keys and values which are there already → (B,Q,D)."""
        return self.merge_heads(self.attention(self.project_queries(x), keys, values, None))

    def merge_heads(self, heads: Tensor) -> Tensor:
        """The heads' results (B,H,Q,Dh), side by side and mapped once more: (B,Q,D)."""
        return self.proj(heads.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def split_heads(self, joined: Tensor, parts: int) -> tuple[Tensor, ...]:
        """(B,T,parts·D) → `parts` × (B,H,T,Dh)."""
        batch, tokens, width = joined.shape
        shape = batch, tokens, parts, self.num_heads, width // (parts * self.num_heads)
        return joined.view(shape).permute(2, 0, 3, 1, 4).unbind()
