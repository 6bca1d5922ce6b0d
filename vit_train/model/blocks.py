"""The encoder block (Dosovitskiy et al. 2021, equations 2 and 3; Vaswani et al. 2017, 3.1)."""

from torch import Tensor, nn

from vit_train.model.attention import Attention
from vit_train.model.config import ViTConfig
from vit_train.model.layers import Dropout, DropPath, LayerNorm, Mlp


class Block(nn.Module):
    """Pre-LN: x + MSA(LN(x)), then x + MLP(LN(x)). Post-LN: LN(x + MSA(x)), then LN(x + MLP(x))."""

    def __init__(
        self, config: ViTConfig, drop_path: float = 0.0, relative: nn.Module | None = None
    ) -> None:
        super().__init__()
        dim, kernels, affine = config.embed_dim, config.kernels, config.norm_affine
        self.pre_norm = config.pre_norm
        self.norm1 = LayerNorm(dim, kernels, affine=affine)
        self.attn = Attention(
            dim,
            config.num_heads,
            config.dropout,
            kernels,
            config.qkv_bias,
            config.proj_bias,
            relative,
        )
        self.norm2 = LayerNorm(dim, kernels, affine=affine)
        self.mlp = Mlp(
            dim, config.hidden_dim, config.dropout, kernels, config.activation, config.mlp_bias
        )
        self.drop_path = DropPath(drop_path)
        self.dropout = Dropout(config.branch_dropout)

    def forward(
        self,
        x: Tensor,
        need_weights: bool = False,
        num_queries: int | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """(B,T,D) → (B,T,D), or its first `num_queries` tokens; and the attention if asked for."""
        attended, weights = self.attn(
            self.norm1(x) if self.pre_norm else x, need_weights, num_queries, mask
        )
        x = x[:, :num_queries] + self.drop_path(self.dropout(attended))
        if self.pre_norm:
            return x + self.drop_path(self.dropout(self.mlp(self.norm2(x)))), weights
        x = self.norm1(x)
        return self.norm2(x + self.drop_path(self.dropout(self.mlp(x)))), weights
