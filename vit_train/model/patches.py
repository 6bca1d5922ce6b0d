"""Cut images into patches, and embed the patches as tokens."""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from vit_train.config.fields import Size, as_setting
from vit_train.config.model import ViTConfig
from vit_train.model.layers import channels_last, norms_of
from vit_train.model.products import linear


def grid_of(image_size: Size, patch_size: int) -> Size:
    """Return the number of rows and of columns of patches."""
    height, width = image_size
    return height // patch_size, width // patch_size


def require_whole_patches(patch_size: int, image_size: Size) -> None:
    """Raise ValueError if the patch size does not divide the image's height and width."""
    if math.gcd(*image_size) % patch_size:
        raise ValueError(
            f"model.patch_size={patch_size} must divide the image size {as_setting(image_size)}: "
            "change model.patch_size or data.image_size"
        )


def patchify(images: Tensor, patch_size: int) -> Tensor:
    """Cut images into patches in row order: (B,C,H,W) → (B,N,C·P²)."""
    # (B,C,rows,P,columns,P)
    cut: Tensor = images.unflatten(3, (-1, patch_size)).unflatten(2, (-1, patch_size))
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def unpatchify(patches: Tensor, patch_size: int, image_size: Size) -> Tensor:
    """Join patches to images, the inverse of `patchify`: (B,N,C·P²) → (B,C,H,W)."""
    return F.fold(patches.transpose(1, 2), image_size, patch_size, stride=patch_size)


def show_only(images: Tensor, visible: Tensor, patch_size: int) -> Tensor:
    """Set all pixels outside the patches with the indices `visible` (B,V) to zero: (B,C,H,W)."""
    rows, columns = grid_of((images.shape[2], images.shape[3]), patch_size)
    is_visible = images.new_zeros(images.shape[0], rows * columns).scatter(1, visible, 1)
    return images * F.interpolate(is_visible.view(-1, 1, rows, columns), scale_factor=patch_size)


class PatchEmbed(nn.Module):
    """Patch embedding: (B,C,H,W) → (B,N,D), with N = H·W/P² patches in row order.

    Compute x_p E in equation 1 of Dosovitskiy et al. 2021. A linear map of P×P patches equals a P×P
    convolution with stride P. The weights are stored like the convolution's, but applied as one
    matrix product, which is faster. With `patch_overlap`, each patch extends into its neighbors on
    every side, and the weights are applied as a convolution. The stem "normed_patches" adds one
    LayerNorm before and one after the linear map, as in Kumar et al. 2023 (dual PatchNorm,
    arXiv:2302.01327).
    """

    def __init__(self, config: ViTConfig, in_channels: int) -> None:
        super().__init__()
        size = config.patch_size
        overlap = config.patch_overlap
        self.proj = nn.Conv2d(in_channels, config.embed_dim, size + 2 * overlap, size, overlap)
        norm = norms_of(config) if config.stem == "normed_patches" else nn.Identity
        self.norm_in = norm(in_channels * size**2)
        self.norm_out = norm(config.embed_dim)

    def forward(self, images: Tensor) -> Tensor:
        weight = self.proj.weight
        bias = self.proj.bias
        if self.proj.padding != (0, 0):
            embedded = self.proj(images).flatten(2).transpose(1, 2)
        else:
            patches = self.norm_in(patchify(images, weight.shape[-1]))
            embedded = linear(patches, weight.flatten(1), bias)
        # The residual stream starts here and keeps the weights' precision, even under autocast.
        return self.norm_out(embedded.to(weight.dtype))  # type: ignore[no-any-return]


def stem_widths(config: ViTConfig) -> list[int]:
    """Return the channels after each convolution of `ConvStem`, whose poolings make a patch of P.

    They double up to 64, before the last convolution to D channels (after Xiao et al. 2021,
    arXiv:2106.14881).
    """
    layers = config.patch_size.bit_length() - 1  # P is a power of 2
    return [*(64 >> left for left in reversed(range(layers - 1))), config.embed_dim]


class ConvStem(nn.Sequential):
    """A convolutional alternative to `PatchEmbed`: (B,C,H,W) → (B,N,D).

    3×3 convolutions, each with ReLU and a 3×3 max pooling of stride 2: two for patches of 4 pixels,
    as in the tokenizer of Hassani et al. 2021 (arXiv:2104.05704), and one more for each doubling.
    Unlike there, the default initialization is Xavier's, not He's.
    """

    def __init__(self, config: ViTConfig, in_channels: int) -> None:
        super().__init__()
        for number, width in enumerate(stem_widths(config), 1):
            conv = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
            self.add_module(f"conv{number}", conv)
            in_channels = width

    def forward(self, images: Tensor) -> Tensor:
        x = channels_last(images)
        for conv in self:
            x = F.max_pool2d(F.relu(conv(x)), 3, stride=2, padding=1)
        return x.flatten(2).transpose(1, 2).to(next(self.parameters()).dtype)
