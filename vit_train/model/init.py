"""The weights that a model begins with."""

import torch
from torch import Tensor, nn

from vit_train.model.attention import Attention
from vit_train.model.config import ViTConfig
from vit_train.model.layers import Mlp
from vit_train.model.pos_embed import PositionEmbedding

# Shares of identity and of noise in the products of an attention's weights (Trockman & Kolter
# 2023, section 4): W_q W_kᵀ ≈ 0.7 I + 0.7 Z and W_v W_o ≈ −0.4 I + 0.4 Z.
QUERY_KEY, VALUE_OUTPUT = 0.7, 0.4


def init_weights(module: nn.Module, config: ViTConfig) -> None:
    """Initialize all weights in `module` according to the config's `init`.

    xavier: linear layers are Xavier-uniform with zero biases, close to the paper's code. Query, key
    and value count as one layer, as in PyTorch's MultiheadAttention, not as three. Patches count as
    flattened, so the fan-in of their embedding is P²·C. mimetic: the same, but attention looks
    trained. torch: linear layers keep PyTorch's default. Positions initialize themselves.
    """
    for child in module.modules():
        if isinstance(child, nn.Linear | nn.Conv2d) and config.init != "torch":
            nn.init.xavier_uniform_(child.weight.flatten(1))
            if child.bias is not None:
                nn.init.zeros_(child.bias)
        if isinstance(child, PositionEmbedding):
            child.init_weights(config.pos_std)
    for child in module.modules():
        if isinstance(child, Attention) and config.init == "mimetic":
            init_mimetic(child)
        if config.zero_branches and isinstance(child, Attention | Mlp):
            last = child.proj if isinstance(child, Attention) else child.fc2
            for parameter in last.parameters():
                nn.init.zeros_(parameter)


@torch.no_grad()
def init_mimetic(attention: Attention) -> None:
    """Make products of weights like those of trained models (arXiv:2305.09828).

    W_q W_kᵀ of each head is close to a positive multiple of the identity, W_v W_o of all heads
    together to a negative one. W acts on rows, x W: it is the transpose of a linear layer's weight.
    """
    qkv, proj = attention.qkv.weight, attention.proj.weight
    if qkv.is_meta:
        return
    dim = proj.shape[0]
    width = dim // attention.num_heads
    for head in range(attention.num_heads):
        rows = slice(head * width, (head + 1) * width)
        left, right = factors(near_identity(dim, QUERY_KEY, QUERY_KEY), width)
        qkv[:dim][rows], qkv[dim : 2 * dim][rows] = left.T, right.T
    left, right = factors(near_identity(dim, -VALUE_OUTPUT, VALUE_OUTPUT), dim)
    qkv[2 * dim :], proj[:] = left.T, right


def near_identity(dim: int, identity: float, noise: float) -> Tensor:
    """Return identity · I + noise · Z, Z of N(0, 1/D): (D,D)."""
    return torch.eye(dim).mul_(identity) + torch.randn(dim, dim).mul_(noise / dim**0.5)


def factors(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return the L and R (D,rank) whose product L Rᵀ is nearest to a matrix (D,D)."""
    u, s, vt = torch.linalg.svd(matrix)
    root = s[:rank].sqrt()
    return u[:, :rank] * root, vt[:rank].T * root
