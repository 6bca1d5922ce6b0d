"""Whether images fit into the machine's memory, asked before any of it is taken."""

from vit_train.limits import require_memory as require_bytes


def require_memory(images: int, size: int, settings: str, bytes_per_pixel: int = 3) -> None:
    """ValueError with the settings' names for more images of `size` by `size` than can be held."""
    counted = "1 image" if images == 1 else f"{images:,} images"
    require_bytes(
        images * size**2 * bytes_per_pixel,
        f"{settings}: {counted} of {size:,} by {size:,}",
        "choose fewer or smaller ones",
    )
