"""Decode image files to RGB arrays of one size, into memory or into a file of the cache.

Files that cannot be decoded are reported with the reason. Warnings count the images with almost no
contrast, and those that lose much of their area to cropping.
"""

import contextlib
import ctypes
import hashlib
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError, _imaging
from PIL.Image import Transpose
from tqdm import tqdm

from vit_train.base.log import logger
from vit_train.base.writing import exclusive, remove_partial, replacing
from vit_train.config.data import FIT, MAX_PIXELS
from vit_train.config.fields import Size
from vit_train.data.dataset import ImagesOnDisk
from vit_train.data.files import IMAGE_FORMATS, NAMED_FORMATS, warn_of

# Suffixes of the formats that can have more than 8 bits per pixel.
DEEP_SUFFIXES = (".png", ".tif", ".tiff", ".jp2", ".pgm", ".ppm")
# Limit on a file's size: the bytes per pixel of uncompressed 16-bit RGBA, and some metadata.
# Decoders read each part of a file into memory whole.
BYTES_PER_PIXEL = 8
METADATA = 1 << 24

warnings.filterwarnings("ignore", module="PIL")  # about unusual metadata
# libtiff prints its errors itself, without the file's name; Pillow raises them, too.
with contextlib.suppress(AttributeError, OSError):  # where the symbol is hidden
    ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(None)


class BrokenImage(Exception):
    """An image file cannot be decoded; the message gives the reason."""


@contextlib.contextmanager
def decoding() -> Iterator[None]:
    """Turn decoding errors in the block, except MemoryError, into BrokenImage."""
    try:
        yield
    except MemoryError:  # not the file's fault
        raise
    except UnidentifiedImageError:
        raise BrokenImage(f"not a {NAMED_FORMATS} image that Pillow can read") from None
    except Exception as error:
        raise BrokenImage(str(error) or type(error).__name__) from error


class Reading(NamedTuple):
    """How files become images of one `size`, which is their height and width in pixels.

    `fit` is one of FIT. In grayscale images of more than 8 bits, `white_level` becomes white; None
    means the `white_level_of` each image's own largest value. Images of more than `max_pixels`
    pixels are not decoded.
    """

    size: Size
    fit: str = FIT[0]
    white_level: int | None = None
    max_pixels: int = MAX_PIXELS


def read_image(path: Path, reading: Reading) -> tuple[np.ndarray, int]:
    """Decode a file to RGB uint8 (3,H,W): rotated per its EXIF, then brought to `reading.size`.

    Also return its marks. Of several frames or pages, only the first is read. Transparent pixels
    become white. Scaling is bilinear with antialiasing, as for the other sources. Raise BrokenImage
    if the file cannot be decoded or the image is too large.
    """
    with opened(path, reading.max_pixels) as image:
        return fit_image(image, reading)


@contextlib.contextmanager
def opened(path: Path, max_pixels: int) -> Iterator[Image.Image]:
    """Open an image file without decoding it yet.

    Raise BrokenImage if this file cannot be opened, if the block cannot decode it, or if the image
    has more than `max_pixels` pixels.
    """
    with decoding():
        if not path.is_file():  # opening a pipe could block forever, and a device might never end
            raise BrokenImage("not a regular file" if path.exists() else "there is no such file")
        if path.stat().st_size > BYTES_PER_PIXEL * max_pixels + METADATA:
            raise BrokenImage(f"the file has more bytes than max_pixels={max_pixels} pixels need")
        # Not by its path: Pillow would map an uncompressed TIFF into memory, with swapped sides if
        # it is turned by its orientation.
        with path.open("rb") as file:
            if file.peek(12)[4:10] == b"ftyphe":
                raise BrokenImage("a HEIC photo, whatever its name: convert it to JPEG")
            with Image.open(file, formats=IMAGE_FORMATS) as image:
                width, height = image.size
                if width * height > max_pixels:
                    raise BrokenImage(
                        f"its {width} by {height} pixels exceed max_pixels={max_pixels}"
                    )
                yield image


# How to undo each EXIF orientation. Other values, such as 1, need no turn.
TURNS = {
    2: Transpose.FLIP_LEFT_RIGHT,
    3: Transpose.ROTATE_180,
    4: Transpose.FLIP_TOP_BOTTOM,
    5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270,
    7: Transpose.TRANSVERSE,
    8: Transpose.ROTATE_90,
}
# The turns that swap height and width.
SWAPS = (Transpose.TRANSPOSE, Transpose.ROTATE_270, Transpose.TRANSVERSE, Transpose.ROTATE_90)


def turn_of(image: Image.Image) -> Transpose | None:
    """Return the turn that an image's EXIF orientation demands, or None if it demands none.

    A TIFF needs no turn: Pillow turns its size when it opens the file, and its pixels when it loads
    them.
    """
    if image.format == "TIFF":
        return None
    try:
        return TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:  # of many kinds; damaged metadata does not make the pixels wrong
        return None


# The color of padding.
PADDING = (128, 128, 128)
# The marks of images and files, which add up.
FLAT = 1
CROPPED = 2
BROKEN = 4
MARKED = {
    FLAT: "with almost no contrast",
    CROPPED: "cropped to the center, by more than a fifth of the area",
}
# The share of an image's area that may be cropped off without a mark.
MOST_LOST = 0.2
# An image counts as flat if no channel spans more than this many gray levels.
MOST_LEVELS = 15


def is_flat(images: np.ndarray) -> Any:
    """Return True for each image (…,C,H,W), of levels 0 to 255, with almost no contrast: (…)."""
    return np.ptp(images, axis=(-2, -1)).max(-1) <= MOST_LEVELS


def fit_image(image: Image.Image, reading: Reading) -> tuple[np.ndarray, int]:
    """Convert an image to RGB uint8 (3,H,W), and return its marks; see `read_image`."""
    height, width = reading.size
    image = upright(image, reading.white_level)
    bilinear = Image.Resampling.BILINEAR
    across, down = image.size
    if reading.fit == "crop":
        scale = min(across / width, down / height)
        across = max(1, round(scale * width))
        down = max(1, round(scale * height))
    left = (image.width - across) // 2
    top = (image.height - down) // 2
    box = (left, top, left + across, top + down)
    lost = 1 - across * down / (image.width * image.height)
    fitted = image.resize((width, height), bilinear, box)
    is_plain = is_flat(np.array(fitted).transpose(2, 0, 1))  # without bars
    if reading.fit == "pad":
        fitted = ImageOps.pad(image, (width, height), bilinear, color=PADDING)
    marks = FLAT * bool(is_plain) + CROPPED * (lost > MOST_LOST)
    return np.array(fitted).transpose(2, 0, 1), marks


def upright(image: Image.Image, white_level: int | None) -> Image.Image:
    """Return an image as RGB, turned as its EXIF orientation demands; see `as_rgb`."""
    image.load()  # first, because metadata may follow the pixels
    # Not by ImageOps.exif_transpose, which writes the metadata anew, and fails if it cannot.
    if (turn := turn_of(image)) is not None:
        image = image.transpose(turn)
    return as_rgb(image, white_level)


def as_rgb(image: Image.Image, white_level: int | None) -> Image.Image:
    """Convert an image to RGB; raise BrokenImage if its values are not integers of up to 16 bits.

    Transparent pixels become white, except in grayscale images of more than 8 bits.
    """
    if is_deep(image):
        values = deep_values(image)
        level = white_level or white_level_of(int(values.max()))
        image = Image.fromarray((values.clip(max=level) * (255 / level)).round().astype(np.uint8))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image if image.mode == "RGB" else image.convert("RGB")


def is_deep(image: Image.Image) -> bool:
    """Return True for grayscale images of more than 8 bits; convert() would clip these at 255."""
    return image.mode.startswith(("F", "I"))


def deep_values(image: Image.Image) -> np.ndarray:
    values = np.asarray(image)
    if image.mode == "F" or values.min() < 0 or values.max() > 65535:
        raise BrokenImage(
            "its pixel values are neither 8-bit nor 16-bit integers: convert them to integers "
            "from 0 to 255"
        )
    return values


def white_level_of(largest: int) -> int:
    """Return the largest value of the smallest bit depth (8, 10, 12, 14 or 16) for `largest`."""
    bits = max(8, largest.bit_length())
    return (1 << bits + bits % 2) - 1


def common_white_level(paths: Sequence[Path], max_pixels: int) -> int | None:
    """Return the white level for all grayscale images of more than 8 bits; None if there are none.

    It is the `white_level_of` the largest value in these images.
    """

    def largest(path: Path) -> int:
        with contextlib.suppress(BrokenImage), opened(path, max_pixels) as image:
            return int(deep_values(image).max()) if is_deep(image) else 0
        return 0

    deep = [path for path in paths if path.suffix.lower() in DEEP_SUFFIXES]
    with ThreadPoolExecutor(THREADS) as pool:
        most = max(pool.map(largest, deep), default=0)
    return white_level_of(most) if most else None


# The images of N decoded files, uint8 (N,3,H,W), a tensor or ImagesOnDisk, and the indices of the
# broken files, each with the reason. The image of a broken file is black.
Decoded = tuple[Any, dict[int, str]]
# The indices of the broken files, each with the reason, and the marks of all files, uint8 (N,).
Marked = tuple[dict[int, str], np.ndarray]
# More threads would wait for the GIL.
THREADS = min(8, os.cpu_count() or 1)
# Number of images that may wait to be stored.
WAITING = 256
PROGRESS_SECONDS = 5.0


def decode_each(
    paths: Sequence[Path], reading: Reading, put: Callable[[int, np.ndarray], object]
) -> Marked:
    """Decode all files, and pass the index and the image, uint8 (3,H,W), of each to `put`.

    Decoding runs in parallel threads, which Pillow allows while it decodes and resizes. Without a
    terminal, log the progress every PROGRESS_SECONDS.
    """
    broken: dict[int, str] = {}
    marks = np.full(len(paths), BROKEN, np.uint8)

    def one(path: Path) -> tuple[np.ndarray, int] | str:
        try:
            return read_image(path, reading)
        except BrokenImage as error:
            return str(error)

    with (
        ThreadPoolExecutor(THREADS) as pool,
        tqdm(total=len(paths), desc="decoding", unit="images", disable=None, leave=False) as bar,
    ):
        logged = time.monotonic()
        for first in range(0, len(paths), WAITING):
            if bar.disable and time.monotonic() > logged + PROGRESS_SECONDS:
                logger.info(f"decoded {first:,} of {len(paths):,} images")
                logged = time.monotonic()
            for index, result in enumerate(pool.map(one, paths[first : first + WAITING]), first):
                bar.update()
                if isinstance(result, str):
                    broken[index] = result
                else:
                    image, marks[index] = result
                    put(index, image)
    return broken, marks


def decode(paths: Sequence[Path], reading: Reading) -> Decoded:
    """Decode all files with `read_image` into memory."""
    pixels = np.zeros((len(paths), 3, *reading.size), np.uint8)
    broken, marks = decode_each(paths, reading, pixels.__setitem__)
    warn(dict(zip(paths, marks, strict=True)))
    return torch.from_numpy(pixels), broken


# Part of every cache key: increase this number whenever decoding changes.
DECODER = 7


def decode_cached(paths: Sequence[Path], reading: Reading) -> Decoded | None:
    """Decode all files into a cache file, and return its images, which stay on disk.

    Later calls with the same `reading` use the cache file again, unless the path, size or
    modification time of a file has changed. If another process is decoding the same files, wait for
    its cache file. If the cache cannot be written, warn and return None.
    """
    key = hashlib.sha256(f"{DECODER} {PIL.__version__} {reading}".encode())
    for path in paths:
        facts = path.stat() if path.exists() else None
        key.update(repr((path.absolute(), facts and (facts.st_size, facts.st_mtime_ns))).encode())
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    entry = Path(base, "vit_train", "decoded", key.hexdigest()[:32])
    images = ImagesOnDisk(entry, (3, *reading.size), torch.arange(len(paths)))
    waiting = "waiting for another process that is decoding the same images"
    try:
        found = read_cache(images, paths, reading)
        if found is None:
            entry.parent.mkdir(parents=True, exist_ok=True)
            with exclusive(entry.with_suffix(".lock"), waiting):
                # Unless another process has decoded them during the wait.
                found = read_cache(images, paths, reading) or write_cache(images, paths, reading)
    except OSError as error:
        logger.warning(f"the decoded images could not be cached: {error}")
        return None
    broken, marks = found
    warn(dict(zip(paths, marks, strict=True)))
    return images, broken


def write_cache(images: ImagesOnDisk, paths: Sequence[Path], reading: Reading) -> Marked:
    """Decode all files into the file of `images`, and append their marks."""
    if images.path.is_file():
        logger.warning(f"decoding again: the cache file {images.path} is damaged or outdated")
    remove_partial(images.path.parent)
    with replacing(images.path) as file:

        def put(index: int, image: np.ndarray) -> None:
            file.seek(index * image.size)
            file.write(image.tobytes())

        broken, marks = decode_each(paths, reading, put)
        file.seek(images.nbytes)
        file.write(marks.tobytes())
    return broken, marks


def read_cache(images: ImagesOnDisk, paths: Sequence[Path], reading: Reading) -> Marked | None:
    """Return what `write_cache` returned when it wrote the file of `images`.

    Return None if there is no such file, if it is damaged, or if a broken image can be decoded now.
    """
    if not images.path.is_file():
        return None
    if images.path.stat().st_size == images.nbytes + len(paths):
        marks = np.fromfile(images.path, np.uint8, offset=images.nbytes)
        broken = (marks == BROKEN).nonzero()[0].tolist()
        reasons, _ = decode_each([paths[index] for index in broken], reading, lambda *_: None)
        if len(reasons) == len(broken):
            return dict(zip(broken, reasons.values(), strict=True)), marks
    return None


def warn(marks: Mapping[Path, int]) -> None:
    """Warn about files whose images have almost no contrast, or have been cropped much."""
    for mark, fault in MARKED.items():
        warn_of([path for path, each in marks.items() if each & mark], "image", fault)
