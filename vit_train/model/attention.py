"""Multi-head self-attention (Vaswani et al. 2017, equation 1), and its mimetic initialization."""

from collections.abc import Callable
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit_train.config.fields import chosen
from vit_train.config.model import ViTConfig
from vit_train.model.layers import Dropout, QueryKeyValue
from vit_train.model.positions import AttentionPositions
from vit_train.model.products import Linear, linear

# With more tokens, `attend` is no faster than PyTorch's attention and needs too much memory.
WRITTEN_TOKENS = 1024
# Devices on which PyTorch compiles a kernel for outer products at run time, which needs a C
# compiler.
OUTER_BY_SUM = ("cuda",)
# Shares of identity and noise in the products of the weights (Trockman & Kolter 2023,
# section 4): W_q W_kᵀ ≈ 0.7 I + 0.7 Z and W_v W_o ≈ −0.4 I + 0.4 Z.
QUERY_KEY = 0.7
VALUE_OUTPUT = 0.4


def attend(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, is_causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Return softmax(q kᵀ/√Dh + bias) v, and the softmax probabilities.

    q (B,H,Q,Dh), k and v (B,H,T,Dh), bias broadcast to (B,H,Q,T) → (B,H,Q,Dh), (B,H,Q,T). With
    `is_causal`, no token attends to later tokens.
    """
    # Scaling q costs Q·Dh multiplications; scaling the logits would cost Q·T.
    logits = product(q * q.shape[-1] ** -0.5, k.transpose(-2, -1))
    if bias is not None:
        logits = logits + bias
    if is_causal:
        visible = causal(k.shape[2], k.device)[: q.shape[2]]
        logits = logits.masked_fill(~visible, float("-inf"))
    probabilities = logits.softmax(dim=-1)
    return product(probabilities.to(v.dtype), v), probabilities


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b: (B,H,M,K), (B,H,K,N) → (B,H,M,N).

    On a device in OUTER_BY_SUM, if a @ b or one of its gradients is an outer product, compute
    a @ b as a sum of elementwise products.
    """
    if a.device.type in OUTER_BY_SUM and 1 in (*a.shape[2:], b.shape[3]):
        return (a.unsqueeze(4) * b.unsqueeze(2)).sum(3)
    return a @ b


def fast_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, is_causal: bool) -> Tensor:
    """Return the result of `attend`, by PyTorch's kernel where that is faster."""
    in_bf16 = q.device.type == "cpu" and q.dtype == torch.bfloat16
    if in_bf16 and q.requires_grad and k.shape[2] <= WRITTEN_TOKENS:
        # In bf16, PyTorch's backward is no faster than in float32; with AMX, it takes eight times
        # as long.
        return attend(q, k, v, bias, is_causal)[0]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=is_causal)


def causal(tokens: int, device: torch.device | None = None) -> Tensor:
    """Return the causal mask (T,T): each token may attend to itself and to earlier tokens."""
    return torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril()


class Attention(nn.Module):
    """Multi-head self-attention, or cross-attention to a `context` (B,T',D): (B,T,D) → (B,T,D).

    `mask` (T,T), or (T,T') with a context, is True where a token (row) may attend to another token
    (column); a row without any True gives zeros. mask="causal" means the mask of `causal`.
    `num_queries=Q` computes only the first Q tokens, (B,Q,D); the other tokens serve only as keys
    and values. `need_weights=True` also returns the attention probabilities (B,H,Q,T). In that
    case, `attend` is used for any setting of `kernels`, because PyTorch's kernels do not return
    probabilities.

    To add another kind, override `mix`, or the constructor and `forward`, and add a line to
    ATTENTIONS.
    """

    # False for a kind without weights, of which no pictures can be drawn.
    has_weights: ClassVar[bool] = True

    def __init__(
        self,
        config: ViTConfig,
        relative: AttentionPositions | None = None,
        qk_norm: Callable[[int], nn.Module] = nn.Identity,
    ) -> None:
        super().__init__()
        dim = config.embed_dim
        self.qkv = QueryKeyValue(dim, 3 * dim, config.qkv_bias)
        self.proj = Linear(dim, dim, config.proj_bias)
        self.num_heads = config.num_heads
        self.kernels = config.kernels
        self.relative = relative or AttentionPositions()  # or rotary; the base class does nothing
        head_dim = dim // config.num_heads
        self.q_norm = qk_norm(head_dim)
        self.k_norm = qk_norm(head_dim)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        need_weights: bool = False,
        num_queries: int | None = None,
        mask: Tensor | Literal["causal"] | None = None,
        context: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        q, k, v = self.project(x, num_queries, context)
        q, k = self.relative.rotate(self.q_norm(q), self.k_norm(k))
        # Under autocast, norms and rotations may return a higher precision than the products need.
        q = q.to(v.dtype)
        k = k.to(v.dtype)
        bias = self.relative.bias(q, k)
        sees = None
        if isinstance(mask, Tensor):
            sees = mask[:num_queries].any(1, keepdim=True)  # (Q,1): a row of −∞ would give NaN
            hidden = torch.where(mask[:num_queries] | ~sees, 0.0, float("-inf")).to(q.dtype)
            bias = hidden if bias is None else bias + hidden
        heads, weights = self.mix(q, k, v, bias, need_weights, is_causal=mask == "causal")
        x = self.dropout(self.merge_heads(heads))
        if sees is not None:  # after the projection, whose bias would undo the zeros
            x = x * sees
            weights = None if weights is None else weights * sees
        return x, weights if need_weights else None

    def mix(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        need_weights: bool,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Mix the values of all tokens: q (B,H,Q,Dh), k and v (B,H,T,Dh) → (B,H,Q,Dh).

        Also return the weights of the values (B,H,Q,T); None is enough without `need_weights`.
        `bias`, which is broadcast to (B,H,Q,T), is −∞ where a token is hidden. Only decoders,
        whose attention is always of this class, set `is_causal`.
        """
        if self.kernels == "scratch" or need_weights:
            return attend(q, k, v, bias, is_causal)
        return fast_attention(q, k, v, bias, is_causal), None

    def project(
        self, x: Tensor, num_queries: int | None = None, context: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return the queries (B,H,Q,Dh), and the keys and values (B,H,T,Dh).

        Queries come from the first Q = `num_queries` tokens of x; None means all tokens. Keys and
        values come from the context or, without a context, from x.
        """
        if num_queries is None and context is None:
            return self.split_heads(self.qkv(x), 3)
        keys, values = self.project_part(x if context is None else context, 1, 3)
        (queries,) = self.project_part(x[:, :num_queries], 0, 1)
        return queries, keys, values

    def project_part(self, x: Tensor, first: int, end: int) -> tuple[Tensor, ...]:
        """Return some of the queries, keys and values of x, each (B,H,T,Dh).

        Queries have number 0, keys 1 and values 2. Return numbers `first` to `end` − 1.
        """
        rows = slice(first * x.shape[-1], end * x.shape[-1])
        bias = None if self.qkv.bias is None else self.qkv.bias[rows]
        return self.split_heads(linear(x, self.qkv.weight[rows], bias), end - first)

    def merge_heads(self, heads: Tensor) -> Tensor:
        """Concatenate the heads' results and apply the output projection: (B,H,Q,Dh) → (B,Q,D)."""
        return self.proj(heads.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def split_heads(self, joined: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Split joint projections into heads: (B,T,parts·D) → `parts` tensors (B,H,T,Dh)."""
        split: Tensor = joined.unflatten(2, (parts, self.num_heads, -1))  # (B,T,parts,H,Dh)
        return split.permute(2, 0, 3, 1, 4).unbind()


@torch.no_grad()
def init_mimetic(attention: Attention) -> None:
    """Initialize attention so that products of its weights resemble those in trained models.

    Follows arXiv:2305.09828. For each head, W_q W_kᵀ is close to a positive multiple of the
    identity. For all heads together, W_v W_o is close to a negative multiple of the identity. Each
    W is applied to rows, x W, so W is the transpose of a linear layer's weight.
    """
    query, key, value = attention.qkv.weight.chunk(3)
    dim = len(query)
    if query.is_meta:
        return
    for head_query, head_key in zip(
        query.chunk(attention.num_heads), key.chunk(attention.num_heads), strict=True
    ):
        left, right = factors(near_identity(dim, QUERY_KEY, QUERY_KEY), len(head_query))
        head_query[:] = left.T
        head_key[:] = right.T
    left, right = factors(near_identity(dim, -VALUE_OUTPUT, VALUE_OUTPUT), dim)
    value[:] = left.T
    attention.proj.weight[:] = right


def near_identity(dim: int, identity: float, noise: float) -> Tensor:
    """Return the matrix identity · I + noise · Z: (D,D), with each entry of Z from N(0, 1/D)."""
    return torch.eye(dim).mul_(identity) + torch.randn(dim, dim).mul_(noise / dim**0.5)


def factors(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return L and R, both (D,rank), whose product L Rᵀ best approximates `matrix` (D,D)."""
    u, s, vt = torch.linalg.svd(matrix)
    root = s[:rank].sqrt()
    return u[:, :rank] * root, vt[:rank].T * root


# The choices of model.attention.
ATTENTIONS: dict[str, type[Attention]] = {"softmax": Attention}


def attention_of(config: ViTConfig) -> type[Attention]:
    """Return the class that model.attention selects; raise ValueError for an unknown name."""
    return chosen(ATTENTIONS, "model.attention", config.attention)
