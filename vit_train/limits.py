"""What is too large, refused by name before it is tried: numbers in settings, and memory."""

import math
import os
from collections.abc import Iterator
from typing import Any

# No count comes near.
LARGEST = 10**12
# About what 32 bits hold.
LARGEST_FLOAT = 1e38
# What generators of random numbers take.
LARGEST_SEED = 2**63 - 1


def require_in_bounds(settings: dict[str, Any]) -> None:
    """ValueError with the setting's name for NaN, infinity, and what is too large, however deep."""
    for key, value in numbers(settings):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{key}={value} must be a finite number")
        largest = LARGEST_FLOAT if isinstance(value, float) else LARGEST
        low, high = (0, LARGEST_SEED) if key.endswith("seed") else (-largest, largest)
        if not low <= value <= high:
            raise ValueError(f"{key}={value} must be between {low} and {high}")


def numbers(settings: dict[str, Any] | list[Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Each with its dotted key; those of a list have the list's."""
    pairs = settings.items() if isinstance(settings, dict) else ((None, each) for each in settings)
    for key, value in pairs:
        dotted = prefix if key is None else f"{prefix}.{key}".removeprefix(".")
        if isinstance(value, dict | list):
            yield from numbers(value, dotted)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield dotted, value


def memory_bytes() -> float:
    """What the machine has; no limit where the system does not say (Windows)."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        return float("inf")


def require_memory(needed: float, what: str, advice: str) -> None:
    """ValueError where `what` needs more bytes than this machine has."""
    there = memory_bytes()
    if needed > there:
        raise ValueError(
            f"{what} would take {gigabytes(needed)} of memory, this machine has "
            f"{gigabytes(there)}: {advice}"
        )


def gigabytes(count: float) -> str:
    return f"{count / 1e9:,.0f} GB" if count >= 1e10 else f"{count / 1e9:.1f} GB"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether Python, or PyTorch on any device, could not get the memory it asked for."""
    words = ("out of memory", "can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or any(each in str(error).lower() for each in words)
