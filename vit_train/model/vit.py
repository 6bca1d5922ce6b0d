"""The Vision Transformer (Dosovitskiy et al. 2021, arXiv:2010.11929, equations 1 to 4)."""

from typing import overload

import torch
from torch import Tensor, nn

from vit_train.model.attention import Attention
from vit_train.model.config import ViTConfig
from vit_train.model.layers import DropPath, LayerNorm, Mlp


class PatchEmbed(nn.Module):
    """Equation 1's x_p E: (B,C,S,S) → (B,N,D), N = (S/P)² patches in row order.

    Cutting P×P patches and mapping each linearly is a convolution with stride P.
    """

    def __init__(self, in_channels: int, embed_dim: int, patch_size: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, embed_dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(images).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]


class Block(nn.Module):
    """Equations 2 and 3, pre-LN: x + MSA(LN(x)), then x + MLP(LN(x))."""

    def __init__(self, config: ViTConfig, drop_path: float) -> None:
        super().__init__()
        dim, kernels = config.embed_dim, config.kernels
        self.norm1 = LayerNorm(dim, kernels)
        self.attn = Attention(dim, config.num_heads, config.dropout, kernels)
        self.norm2 = LayerNorm(dim, kernels)
        self.mlp = Mlp(dim, int(dim * config.mlp_ratio), config.dropout, kernels)
        self.drop_path = DropPath(drop_path)

    def forward(
        self, x: Tensor, need_weights: bool = False, queries: int | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """(B,T,D) → (B,T,D), or its first `queries` tokens; and the attention if asked for."""
        attended, weights = self.attn(self.norm1(x), need_weights, queries)
        x = x[:, :queries] + self.drop_path(attended)
        return x + self.drop_path(self.mlp(self.norm2(x))), weights


class VisionTransformer(nn.Module):
    """Images (B,C,S,S) → logits (B, num_classes).

    Raises ValueError if the patches do not tile the image.
    """

    def __init__(
        self, config: ViTConfig, image_size: int = 32, in_channels: int = 3, num_classes: int = 10
    ) -> None:
        super().__init__()
        if image_size % config.patch_size:
            raise ValueError(
                f"model.patch_size={config.patch_size} must divide the image size {image_size}: "
                "change one of model.patch_size and data.image_size"
            )
        dim, num_patches = config.embed_dim, (image_size // config.patch_size) ** 2
        self.image_shape = (in_channels, image_size, image_size)
        self.patch_embed = PatchEmbed(in_channels, dim, config.patch_size)
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + num_patches, dim))
        self.dropout = nn.Dropout(config.dropout)
        rates = torch.linspace(0, config.drop_path, config.depth).tolist()
        self.blocks = nn.ModuleList(Block(config, rate) for rate in rates)
        self.norm = LayerNorm(dim, config.kernels)
        self.head = nn.Linear(dim, num_classes)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial weights: Xavier-uniform linear maps, as the paper's code, zero biases.

        Patches are flattened first, so their fan-in is P²·C. The head starts at zero: the first
        loss is log(num_classes) whatever the seed.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                nn.init.xavier_uniform_(module.weight.flatten(1))
                assert module.bias is not None
                nn.init.zeros_(module.bias)
        nn.init.normal_(self.cls_token, std=0.02)
        nn.init.normal_(self.pos_embed, std=0.02)
        nn.init.zeros_(self.head.weight)

    @overload
    def forward(self, images: Tensor) -> Tensor: ...
    @overload
    def forward(self, images: Tensor, return_attention: bool) -> tuple[Tensor, list[Tensor]]: ...
    def forward(
        self, images: Tensor, return_attention: bool = False
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        """Return the logits and, if asked for, every layer's attention (B,H,T,T)."""
        if images.shape[1:] != self.image_shape:
            raise ValueError(
                f"expected images (B, {', '.join(map(str, self.image_shape))}), "
                f"got {tuple(images.shape)}"
            )
        patches = self.patch_embed(images)  # (B,N,D)
        cls = self.cls_token.expand(len(images), -1, -1)
        x = self.dropout(torch.cat((cls, patches), dim=1) + self.pos_embed)  # (B,T,D), T = N+1
        attention = []
        for block in self.blocks:
            # After the last block only the class token is read: the others are not computed.
            last = block is self.blocks[-1] and not return_attention
            x, weights = block(x, return_attention, queries=1 if last else None)
            attention.append(weights)
        # Equation 4 normalises the class token alone; LayerNorm acts token by token.
        logits = self.head(self.norm(x[:, 0]))
        return (logits, attention) if return_attention else logits
