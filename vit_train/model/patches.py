"""Images as patches, and back."""

import torch.nn.functional as F
from torch import Tensor


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
