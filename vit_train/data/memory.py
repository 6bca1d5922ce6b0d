"""Check that images fit into the machine's memory before any of it is allocated."""

from vit_train.limits import require_memory
from vit_train.text import counted

# Per pixel of a whole data set: RGB, and a copy while its training images are split.
SPLIT_BYTES = 6


def require_images_fit(images: int, size: int, settings: str, bytes_per_pixel: int = 3) -> None:
    """Raise ValueError, naming the settings, if images of `size` by `size` exceed the memory."""
    require_memory(
        images * size**2 * bytes_per_pixel,
        f"{settings}: {counted(images, 'image')} of {size:,} by {size:,}",
        "choose fewer or smaller ones",
    )
