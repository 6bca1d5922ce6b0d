"""Check that images fit into the machine's memory before any of it is allocated."""

from vit_train.limits import require_memory


def require_images_fit(images: int, size: int, settings: str, bytes_per_pixel: int = 3) -> None:
    """Raise ValueError, naming the settings, if images of `size` by `size` exceed the memory."""
    counted = "1 image" if images == 1 else f"{images:,} images"
    require_memory(
        images * size**2 * bytes_per_pixel,
        f"{settings}: {counted} of {size:,} by {size:,}",
        "choose fewer or smaller ones",
    )
