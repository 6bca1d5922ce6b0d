"""From an encoder's tokens back to patches: parallel with mask tokens, or one after the other."""

import torch
from torch import Tensor, nn

from vit_train.model.attention import Attention
from vit_train.model.config import ViTConfig
from vit_train.model.layers import Dropout, LayerNorm, Mlp
from vit_train.model.positions import TABLES


class DecoderBlock(nn.Module):
    """x + SelfAttention(LN(x)), then x + CrossAttention(LN(x)), then x + MLP(LN(x))."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        dim, kernels, affine = config.embed_dim, config.kernels, config.norm_affine

        def attention() -> Attention:
            biases = config.qkv_bias, config.proj_bias
            return Attention(dim, config.num_heads, config.dropout, kernels, *biases)

        self.norm1, self.norm2, self.norm3 = (
            LayerNorm(dim, kernels, affine=affine) for _ in range(3)
        )
        self.self_attn, self.cross_attn = attention(), attention()
        self.mlp = Mlp(
            dim, config.hidden_dim, config.dropout, kernels, config.activation, config.mlp_bias
        )
        self.dropout = Dropout(config.branch_dropout)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        """x (B,N,D), the encoder's tokens (B,T,D), `mask` (N,N) of the self-attention → (B,N,D)."""
        x = x + self.dropout(self.self_attn(self.norm1(x), mask=mask)[0])
        x = x + self.dropout(self.cross_attn(self.norm2(x), context=memory)[0])
        return x + self.dropout(self.mlp(self.norm3(x)))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Mask tokens, or the patches that came before, plus positions, through the decoder blocks."""

    def __init__(self, config: ViTConfig, grid: int) -> None:
        super().__init__()
        dim = config.embed_dim
        self.mask_token = nn.Parameter(torch.empty(1, 1, dim))
        self.pos_embed = TABLES[config.positions](grid, dim, False)
        self.blocks = nn.ModuleList(DecoderBlock(config) for _ in range(config.depth))
        self.norm = LayerNorm(dim, config.kernels, affine=config.norm_affine)
        for parameter in (self.mask_token, *self.pos_embed.parameters()):
            nn.init.normal_(parameter, std=0.02)

    def forward(self, memory: Tensor, inputs: Tensor | None = None) -> Tensor:
        """The encoder's tokens (B,T,D) → a vector for each of the N patches, (B,N,D).

        Without inputs all patches come at once, from N mask tokens. With inputs (B,N,D), the
        embedded patches, they come one after the other: each sees those before it, and the first
        the mask token in place of a predecessor.
        """
        table = self.pos_embed()
        mask_tokens = self.mask_token.expand(len(memory), table.shape[1], -1)
        mask = None
        if inputs is None:
            x = mask_tokens
        else:
            x = torch.cat((mask_tokens[:, :1], inputs[:, :-1]), dim=1)
            count = table.shape[1]
            mask = torch.ones(count, count, dtype=torch.bool, device=memory.device).tril()
        x = x + table
        for block in self.blocks:
            x = block(x, memory, mask)
        return self.norm(x)  # type: ignore[no-any-return]
