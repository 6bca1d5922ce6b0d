"""Decoding of image files of any size and mode to square RGB arrays.

A file that cannot be decoded is reported with the reason.
"""

import hashlib
import logging
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import PIL
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from tqdm import tqdm

from vit_train.base.writing import replacing

logger = logging.getLogger(__name__)

FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")


# Limit of a file's size: the bytes per pixel of uncompressed 16-bit RGBA, and some metadata.
# It is needed because decoders read each part of a file into memory whole.
BYTES_PER_PIXEL, METADATA = 8, 1 << 24
# An image that is so many times as long as wide is cropped before it is converted: a line of one
# pixel takes the memory of several. Others stay whole, because scaling reads a bit beyond the crop.
LONG = 100
CHANGING_LIMITS = threading.Lock()


class BrokenImage(Exception):
    """A file that cannot be decoded; the message tells the user why."""


@dataclass(frozen=True)
class Decoded:
    """Images uint8 (N,3,S,S), one per file; black for the files in `broken` (index → reason).

    `lost` (N,) is the share of each that is outside the square in its center.
    """

    images: Tensor
    broken: dict[int, str]
    lost: Tensor


def decode(paths: Sequence[Path], size: int, max_pixels: int) -> Decoded:
    """Read all files in threads: Pillow releases the GIL while it decodes and resizes."""
    images = torch.zeros(len(paths), 3, size, size, dtype=torch.uint8)
    lost = torch.zeros(len(paths))
    pixels, shares = images.numpy(), lost.numpy()
    broken = {}

    def one(index: int) -> None:
        try:
            image, shares[index] = read_image(paths[index], size, max_pixels)
            pixels[index] = image.transpose(2, 0, 1)
        except BrokenImage as error:
            broken[index] = str(error)

    # Beyond a few threads, the work that holds the GIL is the bottleneck.
    threads = min(8, os.cpu_count() or 1)
    with only_our_limits(), ThreadPoolExecutor(threads) as pool:
        done = pool.map(one, range(len(paths)))
        for _ in tqdm(done, "decoding", len(paths), unit="images", disable=None, leave=False):
            pass
    return Decoded(images, dict(sorted(broken.items())), lost)


@contextmanager
def only_our_limits() -> Iterator[None]:
    """Lift Pillow's own pixel limit, so that max_pixels is the only one, and silence it.

    It warns about odd metadata. Limit and warnings are the whole process's, so that only one thread
    at a time may change them.
    """
    with CHANGING_LIMITS, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = before


def require_reasonable(path: Path, max_pixels: int) -> None:
    """Raise BrokenImage if a file should not even be opened, OSError if it cannot be examined.

    Opening a pipe could block forever, and reading a device might never end.
    """
    if path.is_dir():
        raise BrokenImage("it is a folder: name a file, or a list of files")
    if not os.path.lexists(path):
        raise BrokenImage("there is no such file")
    if not path.is_file():
        raise BrokenImage("not a regular file")
    size = path.stat().st_size
    if size > BYTES_PER_PIXEL * max_pixels + METADATA:
        raise BrokenImage(f"{size:,} bytes are more than an image of max_pixels={max_pixels} takes")


def read_image(path: Path, size: int, max_pixels: int) -> tuple[np.ndarray, float]:
    """Return a file as uint8 (size,size,3): rotated per its EXIF, scaled and center-cropped.

    Also return the share of it that the crop leaves out. Transparent parts become white. Scaling is
    bilinear and antialiased, as for the other sources. Raise BrokenImage if anything is wrong with
    the file.
    """
    try:
        require_reasonable(path, max_pixels)
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise BrokenImage(
                    f"{width} by {height} pixels are more than max_pixels={max_pixels}"
                )
            # Decode a large JPEG at reduced size; twice the target size loses no detail.
            image.draft("RGB", (2 * size, 2 * size))
            return square(image, size), 1 - min(width, height) / max(width, height)
    except (BrokenImage, MemoryError):  # the latter says nothing about the file
        raise
    except UnidentifiedImageError:
        raise BrokenImage("not a JPEG, PNG, WebP or BMP image") from None
    except Exception as error:  # on damaged files, decoders raise any kind of error
        raise BrokenImage(str(error) or type(error).__name__) from error


def square(image: Image.Image, size: int) -> np.ndarray:
    """Return an image as uint8 (size,size,3): rotated per its EXIF, scaled and center-cropped."""
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        image = ImageOps.exif_transpose(image)
    side = min(image.size)
    left, top = ((length - side) // 2 for length in image.size)
    box = (left, top, left + side, top + side)
    if max(image.size) > LONG * side:
        image, box = image.crop(box), (0, 0, side, side)
    image = as_rgb(image)
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box))


def as_rgb(image: Image.Image) -> Image.Image:
    """Return an image as RGB; raise BrokenImage for pixels whose range is not known.

    Transparent parts of other than 16-bit grayscale images become white.
    """
    if image.mode == "F":
        raise BrokenImage("its pixels are real numbers: convert them to whole ones from 0 to 255")
    if image.mode.startswith("I"):  # up to 16 bits per pixel, which convert() would clip at 255
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise BrokenImage("its pixels need more than 16 bits: convert them to 0 to 255")
        shift = 8 if image.mode != "I" or values.max() > 255 else 0
        image = Image.fromarray((values >> shift).astype(np.uint8))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image if image.mode == "RGB" else image.convert("RGB")


# Part of every key: increase it when `decode` returns something else for the same file.
DECODER = 2


def decode_cached(paths: Sequence[Path], size: int, max_pixels: int) -> Decoded:
    """Decode the files, or load the result if the same bytes were decoded the same way before."""
    entry = cache_folder() / f"{key(paths, size, max_pixels)}.pt"
    if (kept := read(entry, len(paths), size)) is not None:
        logger.info(f"decoded images come from {entry}")
        return tried_again(kept, paths, size, max_pixels)
    decoded = decode(paths, size, max_pixels)
    write(entry, decoded)
    return decoded


def tried_again(kept: Decoded, paths: Sequence[Path], size: int, max_pixels: int) -> Decoded:
    """Decode once more what was broken: the fault may have been the machine's, not the file's."""
    if not kept.broken:
        return kept
    broken = list(kept.broken)
    again = decode([paths[index] for index in broken], size, max_pixels)
    kept.images[broken] = again.images  # in memory alone: the mapping is private
    kept.lost[broken] = again.lost
    still = {broken[index]: why for index, why in again.broken.items()}
    return Decoded(kept.images, still, kept.lost)


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "vit_train" / "decoded"


def key(paths: Sequence[Path], size: int, max_pixels: int) -> str:
    """Hash every file's bytes, in order, and the settings; names and locations do not matter."""
    whole = hashlib.sha256(f"{DECODER} {PIL.__version__} {size} {max_pixels}".encode())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for digest in pool.map(partial(content_digest, max_pixels=max_pixels), paths):
            whole.update(digest)
    return whole.hexdigest()[:32]


def content_digest(path: Path, max_pixels: int) -> bytes:
    """Return a file's digest, or zeros if it must not be opened or cannot be read."""
    try:
        require_reasonable(path, max_pixels)
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except (BrokenImage, OSError):  # decode() will report it
        return bytes(32)


def read(entry: Path, count: int, size: int) -> Decoded | None:
    """Load an entry whose pixels stay on disk until used; return None if absent or damaged."""
    if not entry.is_file():
        return None
    try:
        kept = torch.load(entry, weights_only=True, mmap=True)
        images, broken, lost = kept["images"], kept["broken"], kept["lost"]
        if lost.dtype != torch.float32 or lost.shape != (count,):
            raise ValueError("wrong shape or dtype of the shares")
        if images.dtype != torch.uint8 or images.shape != (count, 3, size, size):
            raise ValueError("wrong shape or dtype of the images")
        if not all(index in range(count) and isinstance(broken[index], str) for index in broken):
            raise ValueError("wrong list of broken files")
        return Decoded(images, broken, lost)
    except Exception as error:
        logger.warning(f"{entry} is damaged ({type(error).__name__}): decoding again")
        return None


def write(entry: Path, decoded: Decoded) -> None:
    """Write a whole entry or none; if that fails, a warning says so."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with replacing(entry) as file:
            torch.save(vars(decoded), file)
    except OSError as error:
        logger.warning(f"the decoded images are not kept: {error}")
    except RuntimeError:  # PyTorch's, instead of the OSError, if a file came out too short
        logger.warning(f"the decoded images are not kept: no space left in {entry.parent}")
