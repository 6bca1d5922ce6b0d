"""Patches: cutting images into them, and embedding them as tokens."""

import torch.nn.functional as F
from torch import Tensor, nn

from vit_train.model.config import ViTConfig
from vit_train.model.layers import MakeNorm, norms_of


def require_whole_patches(patch_size: int, image_size: int) -> None:
    """Raise ValueError if the patches do not tile the image."""
    if image_size % patch_size:
        raise ValueError(
            f"model.patch_size={patch_size} must divide the image size {image_size}: change one of "
            "model.patch_size and data.image_size"
        )


def patchify(images: Tensor, patch_size: int) -> Tensor:
    """Cut images into patches in row order: (B,C,S,S) → (B,N,C·P²)."""
    batch, channels, height, width = images.shape
    rows, columns = height // patch_size, width // patch_size
    cut = images.reshape(batch, channels, rows, patch_size, columns, patch_size)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(batch, rows * columns, channels * patch_size**2)


def unpatchify(patches: Tensor, patch_size: int) -> Tensor:
    """Join patches to images, the inverse of `patchify`: (B,N,C·P²) → (B,C,S,S)."""
    size = round(patches.shape[1] ** 0.5) * patch_size
    return F.fold(patches.transpose(1, 2), (size, size), patch_size, stride=patch_size)


class PatchEmbed(nn.Module):
    """Patch embedding (x_p E in equation 1): (B,C,S,S) → (B,N,D), N = (S/P)² patches in row order.

    Cutting P×P patches and mapping each linearly is the same as a P×P convolution with stride P,
    whose weights these are; one matrix product is faster. Patches that overlap reach `overlap`
    pixels further on every side.
    """

    def __init__(self, in_channels: int, embed_dim: int, patch_size: int, overlap: int = 0) -> None:
        super().__init__()
        size = patch_size + 2 * overlap
        self.proj = nn.Conv2d(in_channels, embed_dim, size, stride=patch_size, padding=overlap)

    def forward(self, images: Tensor) -> Tensor:
        weight, bias = self.proj.weight, self.proj.bias
        if self.proj.padding != (0, 0):
            embedded = self.proj(images).flatten(2).transpose(1, 2)
        else:
            embedded = F.linear(patchify(images, weight.shape[-1]), weight.flatten(1), bias)
        # The residual stream starts here and keeps the weights' precision, even under autocast.
        return embedded.to(weight.dtype)  # type: ignore[no-any-return]


class NormedPatchEmbed(PatchEmbed):
    """Patch embedding with a LayerNorm before and after the linear map.

    From Kumar et al. 2023 (dual PatchNorm, arXiv:2302.01327).
    """

    def __init__(self, in_channels: int, embed_dim: int, patch_size: int, norm: MakeNorm) -> None:
        super().__init__(in_channels, embed_dim, patch_size)
        self.norm_in, self.norm_out = norm(in_channels * patch_size**2), norm(embed_dim)

    def forward(self, images: Tensor) -> Tensor:
        weight, bias = self.proj.weight, self.proj.bias
        vectors = self.norm_in(patchify(images, weight.shape[-1]))
        return self.norm_out(F.linear(vectors, weight.flatten(1), bias).to(weight.dtype))  # type: ignore[no-any-return]


class ConvStem(nn.Module):
    """A convolutional stem instead of the patch embedding: (B,C,S,S) → (B,N,D), P = 4.

    Two 3×3 convolutions, each with ReLU and a 3×3 max pooling of stride 2 (the tokenizer of
    Hassani et al. 2021, arXiv:2104.05704).
    """

    def __init__(self, in_channels: int, embed_dim: int, hidden: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, hidden, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(hidden, embed_dim, 3, padding=1, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(images)), 3, stride=2, padding=1)
        x = F.max_pool2d(F.relu(self.conv2(x)), 3, stride=2, padding=1)
        return x.flatten(2).transpose(1, 2).to(self.conv1.weight.dtype)


def make_stem(config: ViTConfig, in_channels: int) -> nn.Module:
    """Build the module that turns images (B,C,S,S) into tokens (B,N,D)."""
    dim, size = config.embed_dim, config.patch_size
    if config.stem == "conv":
        return ConvStem(in_channels, dim)
    if config.stem == "normed_patches":
        return NormedPatchEmbed(in_channels, dim, size, norms_of(config))
    return PatchEmbed(in_channels, dim, size, config.patch_overlap)
