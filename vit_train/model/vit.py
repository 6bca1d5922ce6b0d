"""The Vision Transformer (Dosovitskiy et al. 2021, arXiv:2010.11929), from top to bottom.

Images are cut into patches (PatchEmbed, equation 1), which go through N blocks of attention and MLP
(Block, equations 2 and 3), all together the Encoder; a head reads what is classified (equation 4).
"""

from typing import overload

import torch
from torch import Tensor, nn

from vit_train.model.attention import Attention
from vit_train.model.config import ViTConfig
from vit_train.model.layers import Dropout, DropPath, Head, LayerNorm, Mlp
from vit_train.model.pos_embed import TABLES, LearnedTable, LearnedTable2D, RelativeKeys


class PatchEmbed(nn.Module):
    """Equation 1's x_p E: (B,C,S,S) → (B,N,D), N = (S/P)² patches in row order.

    Cutting P×P patches and mapping each linearly is a convolution with stride P.
    """

    def __init__(self, in_channels: int, embed_dim: int, patch_size: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, embed_dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, images: Tensor) -> Tensor:
        patches: Tensor = self.proj(images)
        # Under autocast, too: here the residual stream begins.
        return patches.flatten(2).transpose(1, 2).to(self.proj.weight.dtype)


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


class Encoder(nn.Module):
    """Patches, class token, positions and blocks: all of the Vision Transformer but its head.

    Raises ValueError if the patches do not tile the image.
    """

    def __init__(self, config: ViTConfig, image_size: int, in_channels: int = 3) -> None:
        super().__init__()
        if image_size % config.patch_size:
            raise ValueError(
                f"model.patch_size={config.patch_size} must divide the image size {image_size}: "
                "change one of model.patch_size and data.image_size"
            )
        self.config = config
        dim, self.grid = config.embed_dim, image_size // config.patch_size
        self.image_shape = (in_channels, image_size, image_size)
        self.patch_embed = PatchEmbed(in_channels, dim, config.patch_size)
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim)) if config.has_class_token else None
        self.pos_embed = self.make_tables()
        self.dropout = Dropout(config.dropout)
        last = max(1, config.depth - 1)
        rates = [config.drop_path * number / last for number in range(config.depth)]
        self.blocks = nn.ModuleList(
            Block(config, rate, self.make_relative_keys()) for rate in rates
        )
        self.norm = LayerNorm(dim, config.kernels, affine=config.norm_affine)
        init_weights(self, config)
        if self.cls_token is not None:
            init_normal(self.cls_token, config.cls_std)

    def make_tables(self) -> nn.ModuleList:
        """The absolute positions: none, one, or one for every layer."""
        config = self.config
        if config.positions not in TABLES:
            return nn.ModuleList()
        count = config.depth if config.positions_at == "layers" else 1
        make = TABLES[config.positions]
        return nn.ModuleList(
            make(self.grid, config.embed_dim, config.has_class_token) for _ in range(count)
        )

    def make_relative_keys(self) -> nn.Module | None:
        config = self.config
        if config.positions != "relative":
            return None
        head_dim = config.embed_dim // config.num_heads
        return RelativeKeys(self.grid**2, head_dim, config.has_class_token)

    def encoder_state(self) -> dict[str, Tensor]:
        """The state dict without what a subclass adds."""
        parts = ("cls_token", "patch_embed.", "pos_embed.", "blocks.", "norm.")
        return {key: value for key, value in self.state_dict().items() if key.startswith(parts)}

    def tokens(self, images: Tensor) -> Tensor:
        """The class token, where there is one, and the patches: (B,T,D)."""
        if images.shape[1:] != self.image_shape:
            raise ValueError(
                f"expected images (B, {', '.join(map(str, self.image_shape))}), "
                f"got {tuple(images.shape)}"
            )
        patches = self.patch_embed(images)  # (B,N,D)
        if self.cls_token is None:
            return patches  # type: ignore[no-any-return]
        return torch.cat((self.cls_token.expand(len(images), -1, -1), patches), dim=1)

    def encode(
        self,
        x: Tensor,
        need_weights: bool = False,
        num_queries: int | None = None,
        indices: Tensor | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """All blocks: (B,T,D) → (B,T,D), and each layer's attention (B,H,T,T) if asked for.

        `num_queries=Q` computes only the first Q tokens of the last block, (B,Q,D). `indices` (B,T)
        says which of the image's tokens x holds, where it does not hold all of them in order.
        """
        attention = []
        for number, block in enumerate(self.blocks):
            table = self.table_before(number)
            if table is not None:
                x = x + gather(table(), indices)
            if number == 0:
                x = self.dropout(x)
            last = number == len(self.blocks) - 1
            x, weights = block(x, need_weights, num_queries if last else None)
            if weights is not None:
                attention.append(weights)
        return x, attention

    def table_before(self, layer: int) -> nn.Module | None:
        """The absolute positions that are added before this layer."""
        if len(self.pos_embed) == 0 or (layer > 0 and self.config.positions_at == "stem"):
            return None
        return self.pos_embed[layer % len(self.pos_embed)]

    def encode_visible(self, images: Tensor, visible: Tensor) -> Tensor:
        """Images of which only the patches `visible` (B,V) are seen, for a decoder to look at.

        Returns (B,T,D), normalised, T = V and the class token where there is one.
        """
        indices = visible
        if self.cls_token is not None:
            indices = torch.cat((torch.zeros_like(visible[:, :1]), visible + 1), dim=1)
        x, _ = self.encode(gather(self.tokens(images), indices), indices=indices)
        return self.norm(x)  # type: ignore[no-any-return]


def gather(x: Tensor, indices: Tensor | None) -> Tensor:
    """Of x (B or 1,T,D) those at `indices` (B,V), (B,V,D); all where it is None."""
    if indices is None:
        return x
    index = indices.unsqueeze(2).expand(-1, -1, x.shape[2])
    return x.expand(len(indices), -1, -1).gather(1, index)


class VisionTransformer(Encoder):
    """Images (B,C,S,S) → logits (B, num_classes).

    Raises ValueError if the patches do not tile the image.
    """

    def __init__(
        self, config: ViTConfig, image_size: int = 32, in_channels: int = 3, num_classes: int = 10
    ) -> None:
        super().__init__(config, image_size, in_channels)
        dim = config.embed_dim
        hidden = [nn.Linear(dim, dim), nn.Tanh()] if config.head == "token_mlp" else []
        self.pre_head = nn.Sequential(*hidden)
        self.head = Head(dim, num_classes)
        init_weights(self.pre_head, config)
        if config.init == "xavier":  # the first loss is log(num_classes) whatever the seed
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    @overload
    def forward(self, images: Tensor) -> Tensor: ...
    @overload
    def forward(self, images: Tensor, return_attention: bool) -> tuple[Tensor, list[Tensor]]: ...
    def forward(
        self, images: Tensor, return_attention: bool = False
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        """Return the logits and, if asked for, every layer's attention (B,H,T,T)."""
        # After the last block only the class token is read: the others are not computed.
        alone = self.config.has_class_token and not return_attention
        x, attention = self.encode(
            self.tokens(images), return_attention, num_queries=1 if alone else None
        )
        logits = self.head(self.pre_head(self.pooled(x)))
        return (logits, attention) if return_attention else logits

    def pooled(self, x: Tensor) -> Tensor:
        """What is classified, (B,D). Equation 4 normalises; LayerNorm acts token by token."""
        if self.config.has_class_token:
            return self.norm(x[:, 0])  # type: ignore[no-any-return]
        return self.norm(x).mean(dim=1)  # type: ignore[no-any-return]


def init_weights(module: nn.Module, config: ViTConfig) -> None:
    """Draw all weights in `module` as the config's `init` says.

    xavier: Xavier-uniform linear maps with zero biases, as the paper's code has them; but query,
    key and value are one map, as in PyTorch's MultiheadAttention, and patches are flattened first,
    so their fan-in is P²·C. torch: PyTorch's default for linear maps, which they have already.
    Positions are normal.
    """
    for each in module.modules():
        if isinstance(each, nn.Linear | nn.Conv2d) and config.init == "xavier":
            nn.init.xavier_uniform_(each.weight.flatten(1))
            if each.bias is not None:
                nn.init.zeros_(each.bias)
        if isinstance(each, LearnedTable | LearnedTable2D | RelativeKeys):
            for parameter in each.parameters():
                init_normal(parameter, config.pos_std)


def init_normal(parameter: nn.Parameter, std: float) -> None:
    """Draw from N(0, std²), in place.

    On the meta device, where a model is shapes alone, there is nothing to draw, and asking PyTorch
    for it would load its compiler, which takes two seconds.
    """
    if not parameter.is_meta:
        nn.init.normal_(parameter, std=std)
