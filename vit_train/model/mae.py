"""Autoencoders that predict images from parts of them, for training without labels."""

from dataclasses import replace
from typing import overload

import torch
from torch import Tensor, nn

from vit_train.model.config import ViTConfig
from vit_train.model.decoder import Decoder, DecoderAttention
from vit_train.model.init import init_weights
from vit_train.model.patches import patchify, unpatchify
from vit_train.model.vit import Encoder


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
