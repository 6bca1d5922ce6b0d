"""The machine's memory, checked before anything is allocated."""

import os

from vit_train.base.text import counted


def memory_bytes() -> float:
    """Return the machine's memory in bytes; infinity if the system does not report it (Windows)."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        return float("inf")


def require_memory(needed: float, what: str, advice: str) -> None:
    """Raise ValueError if `what` needs more bytes of memory than this machine has."""
    available = memory_bytes()
    if needed > available:
        raise ValueError(
            f"{what} would take {gigabytes(needed)} of memory, but this machine has "
            f"{gigabytes(available)}: {advice}"
        )


def require_attention_fits(needed: float, image_size: int) -> None:
    """Raise ValueError if the machine lacks the `needed` bytes for attention at this image size."""
    require_memory(
        needed,
        f"the attention between all patches of an image of {image_size} by {image_size}",
        "choose a larger model.patch_size or a smaller image size",
    )


def gigabytes(count: float) -> str:
    return f"{count / 1e9:,.0f} GB" if count >= 1e10 else f"{count / 1e9:.1f} GB"


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if the error means that Python or PyTorch, on any device, ran out of memory."""
    phrases = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")
    return isinstance(error, MemoryError) or any(phrase in str(error).lower() for phrase in phrases)


# Bytes per pixel of a whole data set: RGB, and a copy while its training images are split.
SPLIT_BYTES = 6


def require_images_fit(images: int, size: int, settings: str, bytes_per_pixel: int = 3) -> None:
    """Raise ValueError, naming the `settings`, if this many images do not fit into memory."""
    require_memory(
        images * size**2 * bytes_per_pixel,
        f"{settings}: {counted(images, 'image')} of {size:,} by {size:,}",
        "choose fewer or smaller images",
    )
