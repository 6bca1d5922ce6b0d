"""Whether images fit into the machine's memory, asked before any of it is taken."""

import os


def machine_bytes() -> float:
    """What the machine has; no limit where the system does not say (Windows)."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        return float("inf")


def require_memory(images: int, size: int, settings: str, bytes_per_pixel: int = 3) -> None:
    """ValueError with the settings' names for more images of `size` by `size` than can be held."""
    needed, there = images * size**2 * bytes_per_pixel, machine_bytes()
    if needed > there:
        counted = "1 image" if images == 1 else f"{images:,} images"
        raise ValueError(
            f"{settings}: {counted} of {size:,} by {size:,} need {needed / 1e9:,.0f} GB of memory, "
            f"this machine has {there / 1e9:,.0f}: choose fewer or smaller ones"
        )
