"""Autoencoders that predict an image from some of its patches, and the decoder of these models."""

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vit_train.config.fields import ImageShape, Size
from vit_train.config.model import ViTConfig
from vit_train.model.attention import Attention
from vit_train.model.layers import Dropout, Mlp, init_normal, norms_of
from vit_train.model.patches import patchify, unpatchify
from vit_train.model.positions import POSITIONS, AbsolutePositions, make_positions
from vit_train.model.products import Linear
from vit_train.model.vit import Encoder, init_weights


class DecoderBlock(nn.Module):
    """A decoder block of self-attention, cross-attention and MLP, each computing x + f(LN(x)).

    A decoder block is always pre-LN, and has neither stochastic depth, LayerScale nor LayerNorms of
    queries and keys, even if the encoder has them.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        dim = config.embed_dim
        norm = norms_of(config)
        self.norm1 = norm(dim)
        self.norm2 = norm(dim)
        self.norm3 = norm(dim)
        self.self_attn = Attention(config)
        self.cross_attn = Attention(config)
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

        `memory` (B,T,D) holds the encoder's tokens; `mask` applies to the self-attention. Also
        return the attention probabilities of the self-attention and of the cross-attention. Without
        `need_weights`, both are None.
        """
        attended, own = self.self_attn(self.norm1(x), need_weights, mask=mask)
        x = x + self.dropout(attended)
        attended, cross = self.cross_attn(self.norm2(x), need_weights, context=memory)
        x = x + self.dropout(attended)
        return x + self.dropout(self.mlp(self.norm3(x))), (own, cross)


class Decoder(nn.Module):
    """Decoder blocks, applied to mask tokens or to embeddings of earlier patches, plus positions.

    Positions are added once, before the first block, for any value of `positions_at`. Raises
    ValueError unless the positions are absolute.
    """

    def __init__(self, config: ViTConfig, grid: Size) -> None:
        super().__init__()
        # Its positions are those of a model without a class token.
        positions = make_positions(AbsolutePositions, replace(config, head="gap"), grid)
        if positions is None:
            absolute = (n for n, kind in POSITIONS.items() if issubclass(kind, AbsolutePositions))
            raise ValueError(
                f"model.positions={config.positions}: a decoder needs absolute positions; "
                f"choose one of: {', '.join(absolute)}"
            )
        self.mask_token = nn.Parameter(torch.empty(1, 1, config.embed_dim))
        self.pos_embed = positions
        self.blocks = nn.ModuleList(DecoderBlock(config) for _ in range(config.depth))
        self.norm = norms_of(config)(config.embed_dim)
        init_weights(self, config)
        # Initialized like the positions, not like the class token, because only positions
        # distinguish the copies of the mask token.
        init_normal(self.mask_token, config.pos_std if config.mask_std is None else config.mask_std)

    def forward(
        self, memory: Tensor, inputs: Tensor | None = None, need_weights: bool = False
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Decode the encoder's tokens (B,T,D) to one vector for each predicted patch.

        Without `inputs`, predict all N patches at once, from N mask tokens: (B,N,D).

        `inputs` (B,M,D) are the embeddings of the last M patches. If they are given, predict only
        these patches: (B,M,D). The first is predicted from a mask token, each other patch from the
        mask token and the embeddings of the patches before it.

        Also return the attention of each block as a pair: self-attention (B,H,N,N) and
        cross-attention (B,H,N,T), with M instead of N if `inputs` are given. Without
        `need_weights`, both elements of the pair are None.
        """
        table = self.pos_embed()
        if inputs is None:
            x = self.mask_token + table.expand(len(memory), -1, -1)
            mask = None
        else:
            count = inputs.shape[1]
            start = self.mask_token.expand(len(memory), -1, -1)
            x = torch.cat((start, inputs[:, :-1]), dim=1) + table[:, table.shape[1] - count :]
            mask = "causal"
        attention = []
        for block in self.blocks:
            x, weights = block(x, memory, mask, need_weights)
            attention.append(weights)
        return self.norm(x), attention


class EncoderDecoder(nn.Module):
    """An encoder, a decoder of the same width, and a linear map from decoder outputs to pixels.

    The decoder has `decoder_depth` blocks; None means as many as the encoder.
    """

    def __init__(
        self, config: ViTConfig, decoder_depth: int | None, image_shape: ImageShape
    ) -> None:
        super().__init__()
        self.encoder = Encoder(config, image_shape[1:], image_shape[0])
        self.decoder = Decoder(
            replace(config, depth=decoder_depth or config.depth), self.encoder.grid
        )
        self.to_pixels = Linear(config.embed_dim, image_shape[0] * config.patch_size**2)
        init_weights(self.to_pixels, config)

    def decode(self, memory: Tensor, inputs: Tensor | None, return_attention: bool) -> Any:
        """Return the predicted patches (B,N,C·P²) and, if `return_attention`, the attention."""
        vectors, attention = self.decoder(memory, inputs, return_attention)
        patches = self.to_pixels(vectors)
        return (patches, attention) if return_attention else patches


class MaskedAutoencoder(EncoderDecoder):
    """Masked autoencoder: predicts all patches at once from the visible patches.

    Follows He et al. 2022 (arXiv:2111.06377, section 3), except in the decoder. The decoder of He
    et al. processes visible patches and mask tokens as one sequence; here, one mask token per patch
    attends to the visible patches.
    """

    def forward(self, images: Tensor, visible: Tensor, return_attention: bool = False) -> Any:
        """Predict all patches (B,N,C·P²) of images (B,C,H,W) from the visible patches.

        `visible` (B,V) holds the indices of the visible patches. `return_attention` also returns
        the decoder's attention.
        """
        return self.decode(self.encoder.encode_visible(images, visible), None, return_attention)


class Autoregressor(EncoderDecoder):
    """Autoregressive model: predicts an image patch by patch from its first rows of patches.

    The encoder sees only the patches in the first `given_rows` rows, or no patch if `given_rows` is
    0. Raises ValueError if `given_rows` leaves no patch to predict, or if a patch's embedding
    depends on its neighbors.
    """

    def __init__(
        self,
        config: ViTConfig,
        decoder_depth: int | None,
        image_shape: ImageShape,
        given_rows: int,
    ) -> None:
        if config.sees_neighbors:
            raise ValueError(
                "task=autoregress predicts patch by patch, so patches must not overlap: set "
                "model.stem=patches and model.patch_overlap=0"
            )
        super().__init__(config, decoder_depth, image_shape)
        rows, columns = self.encoder.grid
        if given_rows >= rows:
            raise ValueError(
                f"task.given_rows={given_rows} leaves nothing to predict: an image has {rows} rows "
                f"of patches, so choose at most {rows - 1}"
            )
        self.num_given = given_rows * columns

    def forward(self, images: Tensor, return_attention: bool = False) -> Any:
        """Predict each patch below the given rows from the true patches before it.

        Images (B,C,H,W) → the last M patches (B,M,C·P²). `return_attention` also returns the
        decoder's attention.
        """
        embedded = self.encoder.patch_embed(images)[:, self.num_given :]
        given = torch.arange(self.num_given, device=images.device).expand(len(images), -1)
        return self.decode(self.encoder.encode_visible(images, given), embedded, return_attention)

    @torch.no_grad()
    def generate(self, images: Tensor) -> Tensor:
        """Replace the patches below the given rows with predictions: (B,C,H,W) → (B,C,H,W).

        Each patch is predicted from the given patches and the patches that were predicted before
        it.
        """
        size = self.encoder.image_shape[1:]
        side = self.encoder.config.patch_size
        patches = patchify(images, side).clone()
        for index in range(self.num_given, patches.shape[1]):
            predicted = self.forward(unpatchify(patches, side, size))
            patches[:, index] = predicted[:, index - self.num_given]
        return unpatchify(patches, side, size)
