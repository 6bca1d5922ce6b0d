"""The Vision Transformer (Dosovitskiy et al. 2021, arXiv:2010.11929, equations 1 to 4)."""

from typing import overload

import torch
from torch import Tensor, nn

from vit_train.model.blocks import Block
from vit_train.model.config import ViTConfig
from vit_train.model.layers import Dropout, LayerNorm
from vit_train.model.positions import TABLES, RelativeKeys


class PatchEmbed(nn.Module):
    """Equation 1's x_p E: (B,C,S,S) → (B,N,D), N = (S/P)² patches in row order.

    Cutting P×P patches and mapping each linearly is a convolution with stride P.
    """

    def __init__(self, in_channels: int, embed_dim: int, patch_size: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_channels, embed_dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(images).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]


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
        self.config = config
        dim, grid = config.embed_dim, image_size // config.patch_size
        self.image_shape = (in_channels, image_size, image_size)
        self.patch_embed = PatchEmbed(in_channels, dim, config.patch_size)
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim)) if config.has_class_token else None
        self.pos_embed = self.make_tables(grid)
        self.dropout = Dropout(config.dropout)
        rates = torch.linspace(0, config.drop_path, config.depth).tolist()
        self.blocks = nn.ModuleList(
            Block(config, rate, self.make_relative_keys(grid)) for rate in rates
        )
        self.norm = LayerNorm(dim, config.kernels, affine=config.norm_affine)
        self.pre_head = (
            nn.Sequential(nn.Linear(dim, dim), nn.Tanh())
            if config.head == "token_mlp"
            else nn.Identity()
        )
        self.head = nn.Linear(dim, num_classes)
        self.reset_parameters()

    def make_tables(self, grid: int) -> nn.ModuleList:
        """The absolute positions: none, one, or one for every layer."""
        config = self.config
        if config.positions not in TABLES:
            return nn.ModuleList()
        count = config.depth if config.positions_at == "layers" else 1
        make = TABLES[config.positions]
        return nn.ModuleList(
            make(grid, config.embed_dim, config.has_class_token) for _ in range(count)
        )

    def make_relative_keys(self, grid: int) -> nn.Module | None:
        config = self.config
        if config.positions != "relative":
            return None
        return RelativeKeys(grid**2, config.embed_dim // config.num_heads, config.has_class_token)

    def reset_parameters(self) -> None:
        """Draw the initial weights as the config's `init` says.

        xavier: as the paper's code, Xavier-uniform linear maps with zero biases; patches are
        flattened first, so their fan-in is P²·C; the head starts at zero: the first loss is
        log(num_classes) whatever the seed. torch: PyTorch's default for each module.
        """
        if self.config.init == "xavier":
            for module in self.modules():
                if isinstance(module, nn.Linear | nn.Conv2d):
                    nn.init.xavier_uniform_(module.weight.flatten(1))
                    if module.bias is not None:
                        nn.init.zeros_(module.bias)
            nn.init.zeros_(self.head.weight)
        if self.cls_token is not None:
            nn.init.normal_(self.cls_token, std=self.config.cls_std)
        relative = (module for module in self.modules() if isinstance(module, RelativeKeys))
        for positions in (self.pos_embed, *relative):
            for parameter in positions.parameters():
                nn.init.normal_(parameter, std=self.config.pos_std)

    @overload
    def forward(self, images: Tensor) -> Tensor: ...
    @overload
    def forward(self, images: Tensor, return_attention: bool) -> tuple[Tensor, list[Tensor]]: ...
    def forward(
        self, images: Tensor, return_attention: bool = False
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        """Return the logits and, if asked for, every layer's attention (B,H,T,T)."""
        x, attention = self.encode(self.tokens(images), return_attention)
        logits = self.head(self.pre_head(self.pooled(x)))
        return (logits, attention) if return_attention else logits

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

    def encode(self, x: Tensor, need_weights: bool) -> tuple[Tensor, list[Tensor]]:
        """All blocks: (B,T,D) → (B,T,D), or (B,1,D) where only the class token is read."""
        at_stem = self.config.positions_at == "stem"
        if at_stem:
            for table in self.pos_embed:
                x = x + table()
        x = self.dropout(x)
        attention = []
        for number, block in enumerate(self.blocks):
            if not at_stem:
                x = x + self.pos_embed[number % len(self.pos_embed)]()
            # After the last block only the class token is read: the others are not computed.
            last = number == len(self.blocks) - 1
            alone = last and self.config.has_class_token and not need_weights
            x, weights = block(x, need_weights, queries=1 if alone else None)
            attention.append(weights)
        return x, attention

    def pooled(self, x: Tensor) -> Tensor:
        """What is classified, (B,D). Equation 4 normalises; LayerNorm acts token by token."""
        if self.config.has_class_token:
            return self.norm(x[:, 0])  # type: ignore[no-any-return]
        return self.norm(x).mean(dim=1)  # type: ignore[no-any-return]
