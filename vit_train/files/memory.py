"""The machine's memory, checked before anything is allocated."""

import math
import os
from collections.abc import Iterator
from typing import Any

from vit_train.files.text import counted

# Far above any real count.
LARGEST = 10**12
# About the largest 32-bit float.
LARGEST_FLOAT = 1e38
# The largest seed that random number generators accept.
LARGEST_SEED = 2**63 - 1


def require_in_bounds(settings: dict[str, Any]) -> None:
    """Raise ValueError, naming the setting, for NaN, infinity and numbers out of bounds.

    Nested settings are checked at any depth.
    """
    for key, value in numbers(settings):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{key}={value} must be a finite number")
        largest = LARGEST_FLOAT if isinstance(value, float) else LARGEST
        low, high = (0, LARGEST_SEED) if key.endswith("seed") else (-largest, largest)
        if not low <= value <= high:
            raise ValueError(f"{key}={value} must be between {low} and {high}")


def numbers(settings: dict[str, Any] | list[Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield each number with its dotted key; numbers in a list have the list's key."""
    pairs = settings.items() if isinstance(settings, dict) else ((None, item) for item in settings)
    for key, value in pairs:
        dotted = prefix if key is None else f"{prefix}.{key}".removeprefix(".")
        if isinstance(value, dict | list):
            yield from numbers(value, dotted)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield dotted, value


def memory_bytes() -> float:
    """Return the machine's memory, or infinity if the system does not report it (Windows)."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        return float("inf")


def require_memory(needed: float, what: str, advice: str) -> None:
    """Raise ValueError if `what` needs more bytes than this machine has."""
    available = memory_bytes()
    if needed > available:
        raise ValueError(
            f"{what} would take {gigabytes(needed)} of memory, but this machine has "
            f"{gigabytes(available)}: {advice}"
        )


def require_attention_fits(needed: float, image_size: int) -> None:
    """Raise ValueError if the attention of such an image needs more bytes than this machine has."""
    require_memory(
        needed,
        f"the attention between all patches of an image of {image_size} by {image_size}",
        "choose a larger model.patch_size or a smaller image size",
    )


def gigabytes(count: float) -> str:
    return f"{count / 1e9:,.0f} GB" if count >= 1e10 else f"{count / 1e9:.1f} GB"


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether Python, or PyTorch on any device, could not allocate memory."""
    phrases = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or any(phrase in str(error).lower() for phrase in phrases)


# Per pixel of a whole data set: RGB, and a copy while its training images are split.
SPLIT_BYTES = 6


def require_images_fit(images: int, size: int, settings: str, bytes_per_pixel: int = 3) -> None:
    """Raise ValueError, naming the settings, if images of `size` by `size` exceed the memory."""
    require_memory(
        images * size**2 * bytes_per_pixel,
        f"{settings}: {counted(images, 'image')} of {size:,} by {size:,}",
        "choose fewer or smaller ones",
    )
