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
        counted, need = ("1 image", "needs") if images == 1 else (f"{images:,} images", "need")
        shape, has = f"{size:,} by {size:,}", f"{there / 1e9:,.0f}"
        raise ValueError(
            f"{settings}: {counted} of {shape} {need} {needed / 1e9:,.0f} GB of memory, this "
            f"machine has {has}: choose fewer or smaller ones"
        )
