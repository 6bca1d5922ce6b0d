"""What may be wrong with files that are read, or not read: said once a kind, not once a file."""

import logging
from pathlib import Path

from torch import Tensor

from vit_train.text import counted, printable

logger = logging.getLogger(__name__)

# Gray levels between the darkest and the brightest pixel of a channel: 12 bits in a file of 16 have
# no more.
FLAT = 15
# The share of an image's area beyond the square in its center.
MUCH = 0.2
WRONG_FORMAT = "not JPEG, PNG, WebP or BMP"


def are_flat(images: Tensor) -> Tensor:
    """Return whether uint8 images (N,C,S,S) are of nearly one color throughout: bool (N,)."""
    values = images.flatten(2)
    return (values.amax(2) - values.amin(2)).amax(1) <= FLAT


class Doubts:
    """Files about which something is to be said."""

    def __init__(self) -> None:
        self.flat: list[Path] = []
        self.cropped: list[Path] = []

    def note(self, path: Path, image: Tensor, lost: float) -> None:
        """Note a file that was read as an image (C,S,S), and which share of it was cut off."""
        if are_flat(image[None]).item():
            self.flat.append(path)
        if lost > MUCH:
            self.cropped.append(path)

    def warn(self) -> None:
        for paths, kind, why in (
            (self.flat, "of nearly one color", "16-bit files must use their whole range"),
            (self.cropped, "cropped by more than a fifth", "only the center square is read"),
        ):
            if paths:
                logger.warning(f"{counted(len(paths), 'image')} {kind}, {such_as(paths)}: {why}")


def warn_of_passed_over(paths: list[Path], why: str) -> None:
    if paths:
        logger.warning(f"{counted(len(paths), 'file')} passed over, {why}, {such_as(paths)}")


def such_as(paths: list[Path]) -> str:
    """Return words about the only file, or the first one."""
    return f"{'such as ' if len(paths) > 1 else ''}{printable(str(paths[0]))}"
