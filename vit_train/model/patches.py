"""Images as patches, and back."""

import torch.nn.functional as F
from torch import Tensor


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
