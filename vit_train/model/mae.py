"""Encoder and decoder together: images from parts of images, for training without labels."""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit_train.model.config import ViTConfig
from vit_train.model.decoder import Decoder
from vit_train.model.vit import Encoder, init_weights


def patchify(images: Tensor, patch_size: int) -> Tensor:
    """(B,C,S,S) → (B,N,C·P²), the patches in row order."""
    return F.unfold(images, patch_size, stride=patch_size).transpose(1, 2)


def unpatchify(patches: Tensor, patch_size: int) -> Tensor:
    """(B,N,C·P²) → (B,C,S,S): the inverse of `patchify`."""
    size = round(patches.shape[1] ** 0.5) * patch_size
    return F.fold(patches.transpose(1, 2), (size, size), patch_size, stride=patch_size)


class Autoencoder(nn.Module):
    """The encoder, a decoder of the same sizes but its own depth, and a linear map to pixels."""

    def __init__(
        self, config: ViTConfig, decoder_depth: int | None, image_size: int, in_channels: int
    ) -> None:
        super().__init__()
        self.patch_size = config.patch_size
        self.encoder = Encoder(config, image_size, in_channels)
        self.decoder = Decoder(
            replace(config, depth=decoder_depth or config.depth), self.encoder.grid
        )
        self.to_pixels = nn.Linear(config.embed_dim, in_channels * config.patch_size**2)
        init_weights(self.to_pixels, config)


class MaskedAutoencoder(Autoencoder):
    """All patches at once, from the visible ones (He et al. 2022, arXiv:2111.06377, section 3)."""

    def forward(self, images: Tensor, visible: Tensor) -> Tensor:
        """Images (B,C,S,S) and the numbers of the visible patches (B,V) → (B,N,C·P²)."""
        return self.to_pixels(self.decoder(self.encoder.encode_visible(images, visible)))  # type: ignore[no-any-return]


class Autoregressor(Autoencoder):
    """Patch after patch, from the first rows: the encoder sees these alone, or nothing."""

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

    def forward(self, images: Tensor) -> Tensor:
        """(B,C,S,S) → the patches that are not given, each from the true ones before it."""
        embedded = self.encoder.patch_embed(images)[:, self.given :]
        return self.to_pixels(self.decoder(self.encode_given(images), embedded))  # type: ignore[no-any-return]

    def encode_given(self, images: Tensor) -> Tensor:
        """The encoder's tokens of the given patches alone (B,T,D)."""
        given = torch.arange(self.given, device=images.device)
        return self.encoder.encode_visible(images, given.expand(len(images), -1))

    @torch.no_grad()
    def generate(self, images: Tensor) -> Tensor:
        """(B,C,S,S) → the same with all but the given rows predicted, each patch from the last."""
        patches = list(patchify(images, self.patch_size)[:, : self.given].split(1, dim=1))
        vectors = self.decoder.one_by_one(self.encode_given(images), self.count)
        vector = next(vectors)
        for _ in range(self.count - 1):
            patches.append(self.to_pixels(vector))
            vector = vectors.send(self.embed(patches[-1]))
        patches.append(self.to_pixels(vector))
        return unpatchify(torch.cat(patches, dim=1), self.patch_size)

    def embed(self, patches: Tensor) -> Tensor:
        """The encoder's patch embedding of patches that are cut already: (B,M,C·P²) → (B,M,D)."""
        proj = self.encoder.patch_embed.proj
        return F.linear(patches, proj.weight.flatten(1), proj.bias)
