"""Check, before memory is allocated, that data and models fit into the machine's RAM."""

import math
import os
from collections.abc import Sequence

from vit_train.base.setting import Size, in_pixels
from vit_train.base.text import counted


def memory_bytes() -> float:
    """Return the RAM in bytes, or infinity if the system does not report its size (Windows)."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        return float("inf")


def require_memory(needed: float, what: str, advice: str) -> None:
    """Raise ValueError if the machine's RAM is smaller than `needed` bytes.

    The message begins with `what`, the thing that needs the memory, and ends with `advice`.
    """
    available = memory_bytes()
    if needed > available:
        raise ValueError(
            f"{what} would take {gigabytes(needed)} of memory, but this machine has "
            f"{gigabytes(available)}: {advice}"
        )


def require_attention_fits(needed: float, image_size: Size) -> None:
    """Raise ValueError if attention at `image_size` does not fit into the machine's RAM.

    `needed` is the memory for attention in bytes; `image_size` is in pixels.
    """
    require_memory(
        needed,
        f"the attention between all patches of an image of {in_pixels(image_size)}",
        "choose a larger model.patch_size or a smaller image size",
    )


def gigabytes(count: float) -> str:
    return f"{count / 1e9:,.0f} GB" if count >= 1e10 else f"{count / 1e9:.1f} GB"


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if Python or PyTorch raised `error` because memory ran out, on a CPU or a GPU."""
    phrases = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")
    return isinstance(error, MemoryError) or any(phrase in str(error).lower() for phrase in phrases)


def require_images_fit(
    images: int,
    size: Sequence[int],
    settings: str,
    bytes_per_pixel: int = 6,
    advice: str = "choose fewer or smaller images",
) -> None:
    """Raise ValueError if the machine's RAM is too small for this many images.

    `images` is the number of images, and `size` is their height and width in pixels. The message
    begins with `settings`, the names and values of the settings that determine these numbers, and
    ends with `advice`. The default of `bytes_per_pixel` is for a whole data set: RGB, and a copy
    while its training images are split.
    """
    require_memory(
        images * math.prod(size) * bytes_per_pixel,
        f"{settings}: {counted(images, 'image')} of {in_pixels(size)}",
        advice,
    )
