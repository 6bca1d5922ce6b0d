"""The Vision Transformer, from patches to logits, and its initial weights."""

from typing import Any

import torch
from torch import Tensor, nn

from vit_train.config.fields import Size, sides
from vit_train.config.model import ViTConfig
from vit_train.model.attention import Attention, attention_of, init_mimetic
from vit_train.model.layers import (
    Dropout,
    DropPath,
    Head,
    LayerScale,
    Mlp,
    PatchDropout,
    PreHead,
    init_normal,
    norms_of,
    thirds_of,
)
from vit_train.model.patches import ConvStem, PatchEmbed, grid_of, require_whole_patches, show_only
from vit_train.model.positions import (
    AbsolutePositions,
    AttentionPositions,
    PositionEmbedding,
    make_positions,
)
from vit_train.model.products import Linear


def init_weights(module: nn.Module, config: ViTConfig) -> None:
    """Initialize all weights in `module` according to the config's `init`.

    xavier: linear layers are Xavier-uniform with zero biases, close to the paper's code. The joint
    projection to queries, keys and values counts as one layer, as in PyTorch's MultiheadAttention.
    The patch embedding counts as a linear layer with a fan-in of P²·C. mimetic: as xavier, but
    attention resembles trained attention. torch: linear layers keep PyTorch's default. Position
    embeddings initialize all of their own weights.
    """
    init_layers(module, config)
    # Attention comes after its linear layers, whose weights it replaces.
    for child in module.modules():
        if isinstance(child, Attention) and config.init == "mimetic":
            init_mimetic(child)


def init_layers(module: nn.Module, config: ViTConfig) -> None:
    if isinstance(module, PositionEmbedding):
        module.init_weights(config.pos_std)
        return
    if isinstance(module, nn.Linear | nn.Conv2d) and config.init != "torch":
        nn.init.xavier_uniform_(module.weight.flatten(1))
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    for child in module.children():
        init_layers(child, config)


class Block(nn.Module):
    """An encoder block of multi-head self-attention (MSA) and MLP.

    Pre-LN: x + MSA(LN(x)), then x + MLP(LN(x)). Post-LN: LN(x + MSA(x)), then LN(x + MLP(x)).
    """

    def __init__(
        self,
        config: ViTConfig,
        drop_path: float = 0.0,
        relative: AttentionPositions | None = None,
    ) -> None:
        super().__init__()
        dim = config.embed_dim
        norm = norms_of(config)
        self.pre_norm = config.pre_norm
        self.norm1 = norm(dim)
        self.attn = attention_of(config)(config, relative, norm if config.qk_norm else nn.Identity)
        self.norm2 = norm(dim)
        self.mlp = Mlp(config)
        self.ls1, self.ls2 = (
            nn.Identity() if config.layer_scale is None else LayerScale(dim, config.layer_scale)
            for _ in range(2)
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
        """Apply the block to tokens: (B,T,D) → (B,Q,D), with Q = `num_queries` or, for None, Q = T.

        Only the first Q tokens are computed; the other tokens serve as keys and values. Also return
        the attention (B,H,Q,T), or None without `need_weights`. `mask` is as in `Attention`.
        """
        attended, weights = self.attn(
            self.norm1(x) if self.pre_norm else x, need_weights, num_queries, mask
        )
        x = x[:, :num_queries] + self.drop_path(self.dropout(self.ls1(attended)))
        if self.pre_norm:
            return x + self.drop_path(self.dropout(self.ls2(self.mlp(self.norm2(x))))), weights
        x = self.norm1(x)
        return self.norm2(x + self.drop_path(self.dropout(self.ls2(self.mlp(x))))), weights


class Encoder(nn.Module):
    """The Vision Transformer without its head: patches, other tokens, positions and blocks.

    `image_size` is one number for square images, or a height and a width. Raises ValueError if the
    patch size does not divide it.
    """

    def __init__(self, config: ViTConfig, image_size: int | Size, in_channels: int) -> None:
        super().__init__()
        require_whole_patches(config.patch_size, size := sides(image_size))
        self.config = config
        dim = config.embed_dim
        self.grid = grid_of(size, config.patch_size)
        self.image_shape = (in_channels, *size)
        self.patch_embed = (ConvStem if config.stem == "conv" else PatchEmbed)(config, in_channels)
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim)) if config.has_class_token else None
        self.reg_token = (
            nn.Parameter(torch.empty(1, config.registers, dim)) if config.registers else None
        )
        # Tables of absolute positions: none, one, or one per layer.
        layers = config.depth if config.positions_at == "layers" else 1
        tables = (make_positions(AbsolutePositions, config, self.grid) for _ in range(layers))
        self.pos_embed = nn.ModuleList(filter(None, tables))
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            Block(
                config,
                drop_path=config.drop_path * number / max(1, config.depth - 1),
                relative=make_positions(AttentionPositions, config, self.grid),
            )
            for number in range(config.depth)
        )
        self.norm = norms_of(config)(dim) if config.final_norm else nn.Identity()
        init_weights(self, config)
        for tokens in self.prefix_tokens():
            init_normal(tokens, config.cls_std)

    def prefix_tokens(self) -> list[nn.Parameter]:
        """Return the tokens before the patches, (1,1,D) or (1,R,D): class token and registers."""
        return [each for each in (self.cls_token, self.reg_token) if each is not None]

    def parameters_by_layer(self) -> list[list[nn.Parameter]]:
        """Return lists of parameters: one for the embeddings, then one for each block.

        The embeddings are the patch embedding, the positions, the class token and the registers.
        """
        embedding = [
            *self.patch_embed.parameters(),
            *self.pos_embed.parameters(),
            *self.prefix_tokens(),
        ]
        return [embedding, *(list(block.parameters()) for block in self.blocks)]

    def tokens(self, images: Tensor) -> Tensor:
        """Convert images (B,C,H,W) to tokens (B,T,D): class token, registers, patches.

        Raise ValueError unless the images have the encoder's image shape.
        """
        if images.shape[1:] != self.image_shape:
            raise ValueError(
                f"expected images (B, {', '.join(map(str, self.image_shape))}), "
                f"got {tuple(images.shape)}"
            )
        patches = self.patch_embed(images)  # (B,N,D)
        # Not len(images), which an exported program would treat as a constant.
        prefix = [each.expand(images.shape[0], -1, -1) for each in self.prefix_tokens()]
        return torch.cat((*prefix, patches), dim=1) if prefix else patches

    def positions(self, number: int) -> Tensor:
        """Return the positions (1,T,D) to add before block `number`; registers get zeros."""
        # One table serves all blocks, or each block has its own.
        table = self.pos_embed[number % len(self.pos_embed)]()
        if self.reg_token is None:
            return table  # type: ignore[no-any-return]
        first = int(self.config.has_class_token)
        zeros = torch.zeros_like(self.reg_token)
        return torch.cat((table[:, :first], zeros, table[:, first:]), dim=1)

    def encode(
        self,
        x: Tensor,
        need_weights: bool = False,
        num_queries: int | None = None,
        indices: Tensor | None = None,
        blocks: slice = slice(None),
    ) -> tuple[Tensor, list[Tensor]]:
        """Add positions, apply all blocks: (B,T,D) → (B,T,D); also return each block's attention.

        The attention is a list of (B,H,T,T), or of None without `need_weights`. `num_queries=Q`
        computes only the first Q tokens of the last block: (B,Q,D). `indices` (B,T) are the indices
        of x's tokens in the whole sequence; None means all tokens in order. `blocks` are the blocks
        to apply.
        """
        attention = []
        for number, block in list(enumerate(self.blocks))[blocks]:
            if len(self.pos_embed) and (number == 0 or self.config.positions_at != "stem"):
                x = x + gather_tokens(self.positions(number), indices)
            if number == 0:
                x = self.dropout(x)
            last = number == len(self.blocks) - 1
            x, weights = block(x, need_weights, num_queries if last else None)
            attention.append(weights)
        return x, attention

    def encode_visible(self, images: Tensor, visible: Tensor) -> Tensor:
        """Encode only the visible patches of images; `visible` (B,V) holds their indices.

        No pixel of any other patch has an influence. Return tokens (B,T,D) for a decoder,
        normalized by the final LayerNorm. T is V plus the number of tokens before the patches; for
        V = 0, T is 0.
        """
        if self.config.sees_neighbors:
            images = show_only(images, visible, self.config.patch_size)
        # Without visible patches, there is no token at all.
        indices = self.token_indices(visible) if visible.shape[1] else visible
        x, _ = self.encode(gather_tokens(self.tokens(images), indices), indices=indices)
        return self.norm(x)  # type: ignore[no-any-return]

    def pool(self, x: Tensor, of_class: bool) -> Tensor:
        """Return features (B,D) of encoded tokens (B,T,D): the class token, or the patches' mean.

        They are normalized as in equation 4.
        """
        if of_class:
            # LayerNorm acts on each token separately, so the class token can be normalized alone.
            return self.norm(x[:, 0])  # type: ignore[no-any-return]
        patches = x[:, self.config.num_prefix_tokens :]
        if self.config.head == "gap_norm":
            return self.norm(patches.mean(dim=1))  # type: ignore[no-any-return]
        return self.norm(patches).mean(dim=1)  # type: ignore[no-any-return]

    def token_indices(self, patches: Tensor) -> Tensor:
        """Return the indices (B,T) of all tokens before the patches and of the `patches` (B,V)."""
        count = self.config.num_prefix_tokens
        first = torch.arange(count, device=patches.device).expand(len(patches), -1)
        return torch.cat((first, patches + count), dim=1)


def gather_tokens(x: Tensor, indices: Tensor | None) -> Tensor:
    """Return the tokens of x (B or 1,T,D) at `indices` (B,V): (B,V,D); for None, return x."""
    return x if indices is None else x.take_along_dim(indices.unsqueeze(2), dim=1)


class VisionTransformer(Encoder):
    """The Vision Transformer as a classifier: images (B,C,H,W) → logits (B,num_classes).

    Raises ValueError as `Encoder` does, and for patch_dropout without absolute positions.
    """

    def __init__(
        self,
        config: ViTConfig,
        image_size: int | Size = 32,
        in_channels: int = 3,
        num_classes: int = 10,
    ) -> None:
        super().__init__(config, image_size, in_channels)
        dim = config.embed_dim
        self.patch_dropout = PatchDropout(config.patch_dropout, config.patch_dropout_epochs)
        if config.patch_dropout and config.positions != "none" and not self.pos_embed:
            raise ValueError(
                f"model.patch_dropout={config.patch_dropout} needs absolute positions, but "
                f"model.positions={config.positions}"
            )
        self.pre_head = PreHead()
        if config.head == "token_mlp":
            self.pre_head.extend([Linear(dim, dim), nn.Tanh(), Dropout(config.dropout)])
        self.head = Head(dim, num_classes)
        init_weights(self.pre_head, config)
        if config.init != "torch":  # so that the first loss is log(num_classes) for every seed
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)

    def forward(
        self, images: Tensor, return_attention: bool = False, return_features: bool = False
    ) -> Any:
        """Return the logits and, with `return_attention`, each block's attention (B,H,T,T).

        With `return_features`, return the logits, the patches (B,V,D) after each third of the
        blocks, and the patches' indices (B,V), or None for all patches.
        """
        tokens = self.tokens(images)  # (B,T,D)
        kept = self.patch_dropout(tokens[:, self.config.num_prefix_tokens :])  # (B,V)
        indices = None if kept is None else self.token_indices(kept)
        x = gather_tokens(tokens, indices)
        if return_features:
            features = []
            for third in thirds_of(self.blocks):
                x, _ = self.encode(x, indices=indices, blocks=third)  # (B,T,D)
                features.append(x[:, self.config.num_prefix_tokens :])
        else:
            # If the head reads only the class token, the last block need not compute the others.
            class_only = self.config.has_class_token and not return_attention
            x, attention = self.encode(x, return_attention, 1 if class_only else None, indices)
        logits = self.head(self.pre_head(self.pool(x, self.config.has_class_token)))
        if return_features:
            return logits, features, kept
        return (logits, attention) if return_attention else logits


def layer_index(layer: int, depth: int, owner: str) -> int:
    """Convert a layer number to an index, which counts from 0.

    Layer numbers count from 1 or, if negative, from the end. Raise ValueError if the layer does not
    exist; the message calls the module `owner`.
    """
    if not 1 <= abs(layer) <= depth:
        raise ValueError(f"layer={layer}: the {owner} has layers 1 to {depth}")
    return layer - 1 if layer > 0 else depth + layer


def encoder_of(model: nn.Module) -> Encoder | None:
    """Return the model's encoder, or None if the model has none.

    A classifying Vision Transformer is itself an encoder; an autoencoder contains an encoder.
    """
    return next((each for each in model.modules() if isinstance(each, Encoder)), None)
