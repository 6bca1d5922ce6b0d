"""Autoencoders that predict images from parts of them, and their decoder."""

from dataclasses import dataclass, replace
from typing import Literal, cast, overload

import torch
from torch import Tensor, nn

from vit_train.model.attention import Attention
from vit_train.model.config import ViTConfig
from vit_train.model.layers import Dropout, Mlp, init_normal, norms_of
from vit_train.model.patches import patchify, unpatchify
from vit_train.model.pos_embed import POSITIONS, AbsolutePositions, chosen_positions
from vit_train.model.vit import Encoder, init_weights

# Each layer's self-attention (B,H,N,N) and attention to the encoder's tokens (B,H,N,T).
DecoderAttention = list[tuple[Tensor, Tensor]]


class DecoderBlock(nn.Module):
    """A block of x + SelfAttention(LN(x)), then x + CrossAttention(LN(x)), then x + MLP(LN(x)).

    It is always pre-LN, without stochastic depth, and does not normalize queries and keys, whatever
    the encoder does.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        dim, norm = config.embed_dim, norms_of(config)
        self.norm1, self.norm2, self.norm3 = norm(dim), norm(dim), norm(dim)
        self.self_attn, self.cross_attn = Attention(config), Attention(config)
        self.mlp = Mlp(config)
        self.dropout = Dropout(config.branch_dropout)

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        mask: Tensor | Literal["causal"] | None,
        need_weights: bool = False,
    ) -> tuple[Tensor, tuple[Tensor | None, Tensor | None]]:
        """Apply the block to x: (B,N,D) → (B,N,D).

        `memory` (B,T,D) is the encoder's tokens, `mask` the mask of the self-attention. The
        second result is the self-attention and the cross-attention, None without `need_weights`.
        """
        attended, own = self.self_attn(self.norm1(x), need_weights, mask=mask)
        x = x + self.dropout(attended)
        attended, cross = self.cross_attn(self.norm2(x), need_weights, context=memory)
        x = x + self.dropout(attended)
        return x + self.dropout(self.mlp(self.norm3(x))), (own, cross)

    def step(self, x: Tensor, seen: "KeyValues", memory: "KeyValues") -> Tensor:
        """Apply the block to the next token (B,1,D) of a causal sequence, and add it to `seen`."""
        normed = self.norm1(x)
        seen.append(*self.self_attn.project_keys_values(normed))
        x = x + self.self_attn.attend_cached(normed, seen.keys, seen.values)
        x = x + self.cross_attn.attend_cached(self.norm2(x), memory.keys, memory.values)
        return x + self.mlp(self.norm3(x))  # type: ignore[no-any-return]


@dataclass
class KeyValues:
    """The keys and values of the tokens so far, (B,H,t,Dh) each, cached to compute them once."""

    keys: Tensor
    values: Tensor

    def append(self, keys: Tensor, values: Tensor) -> None:
        self.keys = torch.cat((self.keys, keys), dim=2)
        self.values = torch.cat((self.values, values), dim=2)


class Decoder(nn.Module):
    """Decoder blocks applied to mask tokens, or to the preceding patches, plus positions.

    The positions are added once, before the first block, whatever the encoder's `positions_at` is.
    Raises ValueError unless `positions` is absolute.
    """

    def __init__(self, config: ViTConfig, grid: int) -> None:
        super().__init__()
        positions = chosen_positions(config)
        if positions is None or not issubclass(positions, AbsolutePositions):
            absolute = (
                name for name in POSITIONS if issubclass(POSITIONS[name], AbsolutePositions)
            )
            raise ValueError(
                f"model.positions={config.positions}: a decoder needs absolute positions: "
                f"use one of {', '.join(absolute)}"
            )
        dim = config.embed_dim
        self.mask_token = nn.Parameter(torch.empty(1, 1, dim))
        self.pos_embed = positions(grid, dim, has_class=False)
        self.blocks = nn.ModuleList(DecoderBlock(config) for _ in range(config.depth))
        self.norm = norms_of(config)(dim)
        init_weights(self, config)
        # By default as the positions, not as the class token: the positions are all that
        # distinguishes the copies of the mask token.
        std = config.pos_std if config.mask_std is None else config.mask_std
        init_normal(self.mask_token, std)

    def forward(
        self, memory: Tensor, inputs: Tensor | None = None, return_attention: bool = False
    ) -> Tensor | tuple[Tensor, DecoderAttention]:
        """Decode the encoder's tokens (B,T,D) to one vector for each of the N patches, (B,N,D).

        Without `inputs`, all patches are predicted at once, from N mask tokens. `inputs`
        (B,M,D) are the embeddings of the last M patches; the result is then (B,M,D). Each of these
        patches is predicted from those before it, and the first from the mask token instead.
        `return_attention` also returns every layer's attention, in this case of the M patches.
        """
        table = self.pos_embed()
        if inputs is None:
            x, mask = self.mask_token + table.expand(len(memory), -1, -1), None
        else:
            count = inputs.shape[1]
            start = self.mask_token.expand(len(memory), -1, -1)
            x = torch.cat((start, inputs[:, :-1]), dim=1) + table[:, table.shape[1] - count :]
            mask = "causal"
        attention = []
        for block in self.blocks:
            x, weights = block(x, memory, mask, return_attention)
            attention.append(weights)
        return (self.norm(x), attention) if return_attention else self.norm(x)

    def caches(self, memory: Tensor) -> list[tuple[KeyValues, KeyValues]]:
        """Return each block's keys and values: of its own tokens, none yet, and of the memory."""
        return [
            (
                KeyValues(*block.self_attn.project_keys_values(memory[:, :0])),
                KeyValues(*block.cross_attn.project_keys_values(memory)),
            )
            for block in cast("list[DecoderBlock]", self.blocks)
        ]

    def next_vector(
        self, before: Tensor | None, place: int, caches: list[tuple[KeyValues, KeyValues]]
    ) -> Tensor:
        """Return the vector (B,1,D) of the patch at this place, and note it in the caches.

        `before` (B,1,D) is the embedding of the patch before it; None stands for the first patch.
        Called for one patch after another, this returns what `forward` does with all embeddings as
        inputs: a token does not depend on those after it, so it is computed only once.
        """
        count = len(caches[0][1].keys)
        x = self.mask_token.expand(count, -1, -1) if before is None else before
        x = x + self.pos_embed()[:, place : place + 1]
        blocks = cast("list[DecoderBlock]", self.blocks)
        for block, (seen, memory) in zip(blocks, caches, strict=True):
            x = block.step(x, seen, memory)
        return self.norm(x)  # type: ignore[no-any-return]


class Autoencoder(nn.Module):
    """An encoder, a decoder of the same width but its own depth, and a linear map to pixels."""

    def __init__(
        self, config: ViTConfig, decoder_depth: int | None, image_size: int, in_channels: int
    ) -> None:
        super().__init__()
        if config.stem != "patches" or config.patch_overlap:
            raise ValueError(
                "this task hides patches from the encoder, which needs plain patches: set "
                "model.stem=patches, model.patch_overlap=0"
            )
        self.patch_size = config.patch_size
        self.encoder = Encoder(config, image_size, in_channels)
        self.decoder = Decoder(
            replace(config, depth=decoder_depth or config.depth), self.encoder.grid
        )
        self.to_pixels = nn.Linear(config.embed_dim, in_channels * config.patch_size**2)
        init_weights(self.to_pixels, config)

    def decode(
        self, memory: Tensor, inputs: Tensor | None, return_attention: bool
    ) -> Tensor | tuple[Tensor, DecoderAttention]:
        """Return the decoder's patches (B,N,C·P²) and, if asked for, its attention."""
        decoded = self.decoder(memory, inputs, return_attention)
        if isinstance(decoded, Tensor):
            return self.to_pixels(decoded)  # type: ignore[no-any-return]
        vectors, attention = decoded
        return self.to_pixels(vectors), attention


class MaskedAutoencoder(Autoencoder):
    """Masked autoencoder: predicts all patches at once from the visible ones.

    From He et al. 2022 (arXiv:2111.06377, section 3), but for the decoder: there the visible
    patches stand among the mask tokens; here the mask tokens, one for every patch, attend to them.
    """

    @overload
    def forward(self, images: Tensor, visible: Tensor) -> Tensor: ...
    @overload
    def forward(
        self, images: Tensor, visible: Tensor, return_attention: bool
    ) -> tuple[Tensor, DecoderAttention]: ...
    def forward(
        self, images: Tensor, visible: Tensor, return_attention: bool = False
    ) -> Tensor | tuple[Tensor, DecoderAttention]:
        """Predict all patches (B,N,C·P²) of images (B,C,S,S) from the patches `visible` (B,V).

        `return_attention` also returns the decoder's attention.
        """
        memory = self.encoder.encode_visible(images, visible)
        return self.decode(memory, None, return_attention)


class Autoregressor(Autoencoder):
    """Autoregressive model that predicts an image patch by patch from its first rows.

    The encoder sees only these rows, or no patch at all if `given_rows` is 0. Raises ValueError if
    `given_rows` leaves no patch to predict.
    """

    def __init__(
        self,
        config: ViTConfig,
        decoder_depth: int | None,
        image_size: int,
        in_channels: int,
        given_rows: int,
    ) -> None:
        super().__init__(config, decoder_depth, image_size, in_channels)
        grid = self.encoder.grid
        if given_rows >= grid:
            raise ValueError(
                f"task.given_rows={given_rows} leaves nothing to predict: an image has {grid} rows "
                "of patches"
            )
        self.given, self.count = given_rows * grid, (grid - given_rows) * grid

    @overload
    def forward(self, images: Tensor) -> Tensor: ...
    @overload
    def forward(
        self, images: Tensor, return_attention: bool
    ) -> tuple[Tensor, DecoderAttention]: ...
    def forward(
        self, images: Tensor, return_attention: bool = False
    ) -> Tensor | tuple[Tensor, DecoderAttention]:
        """Predict each patch that is not given from the true patches before it.

        Images (B,C,S,S) → the last M patches (B,M,C·P²). `return_attention` also returns the
        decoder's attention.
        """
        embedded = self.encoder.patch_embed(images)[:, self.given :]
        return self.decode(self.encode_given(images), embedded, return_attention)

    def encode_given(self, images: Tensor) -> Tensor:
        """Return the encoder's tokens (B,T,D) when it sees only the given patches."""
        given = torch.arange(self.given, device=images.device)
        return self.encoder.encode_visible(images, given.expand(len(images), -1))

    @torch.no_grad()
    def generate(self, images: Tensor) -> Tensor:
        """Replace all but the given rows by predictions: (B,C,S,S) → (B,C,S,S).

        Each patch is predicted from the given patches and the predictions before it.
        """
        patches = list(patchify(images, self.patch_size)[:, : self.given].split(1, dim=1))
        caches, before = self.decoder.caches(self.encode_given(images)), None
        for place in range(self.given, self.given + self.count):
            patches.append(self.to_pixels(self.decoder.next_vector(before, place, caches)))
            # A patch is an image of one patch.
            before = self.encoder.patch_embed(unpatchify(patches[-1], self.patch_size))
        return unpatchify(torch.cat(patches, dim=1), self.patch_size)
