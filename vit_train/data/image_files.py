"""Find the image files that the user names, and decode them to square RGB arrays.

A file that cannot be decoded is reported with the reason. Warn about images with almost no
contrast, and about images that lose much of their area to cropping.
"""

import contextlib
import glob
import hashlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL
import torch
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from tqdm import tqdm

from vit_train.base.log import logger
from vit_train.base.text import counted, printable
from vit_train.base.writing import replacing

FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
WRONG_FORMAT = "skipped (not JPEG, PNG, WebP or BMP)"
NAMED_AT_MOST = 10
# Limit on a file's size: the bytes per pixel of uncompressed 16-bit RGBA, and some metadata.
# Decoders read each part of a file into memory whole.
BYTES_PER_PIXEL, METADATA = 8, 1 << 24

warnings.filterwarnings("ignore", module="PIL")  # about unusual metadata


def image_files(images: Any) -> list[Path]:
    """Return the image files that the setting `images` names; raise ValueError if there are none.

    `images` is a file, a folder, a pattern, or a list of these. "-" alone means that standard input
    lists the file names, one per line.
    """
    names = images if isinstance(images, list) else [images]
    if names == ["-"]:
        lines = sys.stdin.buffer.read().splitlines() if sys.stdin else []
        found = [Path(os.fsdecode(line)) for line in lines if line]  # names need not be UTF-8
    else:
        found = [path for name in names for path in files_at(str(name))]
    if not found:
        raise ValueError(f"images={images} names no file: name image files, folders or patterns")
    return found


def files_at(name: str, key: str = "images") -> Sequence[Path]:
    """Return the file `name`, the images below the folder `name`, or the matches of a pattern.

    Warn about other files in the folder. Raise ValueError if no file is found; `key` is the setting
    that has the value `name`.
    """
    path = Path(os.path.expanduser(name))  # Path's own method fails for ~photo.jpg
    if path.is_dir():
        found, others = by_suffix(walk(path))
        warn_of(others, "file", WRONG_FORMAT)
    elif path.exists():
        found = [path]
    else:
        matches = map(Path, sorted(glob.glob(str(path), recursive=True)))
        found = [match for match in matches if not match.is_dir()]
    if not found:
        raise ValueError(
            f"{key}={name}: there is no such file or folder, or the folder contains no image "
            f"({', '.join(SUFFIXES)})"
        )
    return found


def by_suffix(files: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the files that have an image suffix, and the files that do not."""
    named = [path for path in files if path.suffix.lower() in SUFFIXES]
    return named, [path for path in files if path.suffix.lower() not in SUFFIXES]


def visible(folder: Path) -> list[Path]:
    """Return a folder's sorted entries, except hidden ones; return [] if it does not exist."""
    return sorted(child for child in folder.glob("*") if not child.name.startswith("."))


def walk(folder: Path) -> list[Path]:
    """Return all files in a folder and its subfolders, sorted, without hidden ones.

    Warn about links to folders, which are not followed, and about unreadable folders.
    """
    files, links = [], []
    for place, folders, names in os.walk(
        folder,
        onerror=lambda error: logger.warning(
            f"skipped the unreadable folder {error.filename}: {error.strerror}"
        ),
    ):
        folders[:] = [name for name in folders if not name.startswith(".")]
        links += [path for name in folders if (path := Path(place) / name).is_symlink()]
        files += [Path(place) / name for name in names if not name.startswith(".")]
    if links:
        logger.warning(f"ignored links to folders:{listed(sorted(links))}")
    return sorted(files)


def listed(lines: Sequence[object]) -> str:
    """Return the first NAMED_AT_MOST lines as a bulleted list, and the number of lines left out."""
    more = len(lines) - NAMED_AT_MOST
    named = "".join(f"\n  - {printable(str(line))}" for line in lines[:NAMED_AT_MOST])
    return named + (f"\n  and {more} more" if more > 0 else "")


def warn_of(paths: list[Path], noun: str, fault: str, why: str = "") -> None:
    """Log the warning "3 NOUNs FAULT, such as PATH" followed by `why`, unless `paths` is empty."""
    if paths:
        first = f"{'such as ' if len(paths) > 1 else ''}{printable(str(paths[0]))}"
        logger.warning(f"{counted(len(paths), noun)} {fault}, {first}{why}")


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
        raise BrokenImage("not a JPEG, PNG, WebP or BMP image") from None
    except Exception as error:
        raise BrokenImage(str(error) or type(error).__name__) from error


def read_image(path: Path, size: int, max_pixels: int, fit: str) -> tuple[np.ndarray, float]:
    """Decode a file to RGB uint8 (size,size,3): rotated per its EXIF, then made square and scaled.

    `fit` is one of FIT. Also return the share of the image's area that is cropped off. Transparent
    pixels become white. Scaling is bilinear with antialiasing, as for the other sources. Raise
    BrokenImage if the file cannot be decoded or the image has more than `max_pixels` pixels.
    """
    with decoding():
        if not path.is_file():  # opening a pipe could block forever, and a device might never end
            raise BrokenImage("not a regular file" if path.exists() else "there is no such file")
        if path.stat().st_size > BYTES_PER_PIXEL * max_pixels + METADATA:
            raise BrokenImage(f"the file has more bytes than max_pixels={max_pixels} pixels need")
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            if width * height > max_pixels:
                raise BrokenImage(f"its {width} by {height} pixels exceed max_pixels={max_pixels}")
            # Decode a large JPEG at reduced size; twice the target size loses no detail.
            image.draft("RGB", (2 * size, 2 * size))
            lost = 1 - min(width, height) / max(width, height) if fit == "crop" else 0.0
            return square(image, size, fit), lost


# The color of padding.
GRAY = (128, 128, 128)


def square(image: Image.Image, size: int, fit: str) -> np.ndarray:
    """Convert an image to RGB uint8 (size,size,3), as `read_image` does."""
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:
        image = ImageOps.exif_transpose(image)
    image, bilinear = as_rgb(image), Image.Resampling.BILINEAR
    if fit == "pad":
        return np.asarray(ImageOps.pad(image, (size, size), bilinear, color=GRAY))
    box = None
    if fit == "crop":
        side = min(image.size)
        left, top = ((length - side) // 2 for length in image.size)
        box = (left, top, left + side, top + side)
    return np.asarray(image.resize((size, size), bilinear, box=box))


def as_rgb(image: Image.Image) -> Image.Image:
    """Convert an image to RGB; raise BrokenImage if its values are not 8-bit or 16-bit integers.

    Transparent pixels become white, except in 16-bit grayscale images.
    """
    if image.mode.startswith(("F", "I")):  # convert() would clip these at 255
        values = np.asarray(image)
        if image.mode == "F" or values.min() < 0 or values.max() > 65535:
            raise BrokenImage(
                "its pixel values are neither 8-bit nor 16-bit integers: convert them to integers "
                "from 0 to 255"
            )
        shift = 8 if image.mode != "I" or values.max() > 255 else 0
        image = Image.fromarray((values >> shift).astype(np.uint8))
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image if image.mode == "RGB" else image.convert("RGB")


class Decoded(NamedTuple):
    """N decoded files: images uint8 (N,3,S,S), broken files, and the area lost to cropping.

    `broken` maps the index of each file that could not be decoded to the reason; the image of such
    a file is black. `lost` (N,) is the share of each image's area that was cropped off.
    """

    images: Tensor
    broken: dict[int, str]
    lost: Tensor


def decode(paths: Sequence[Path], size: int, max_pixels: int, fit: str) -> Decoded:
    """Decode all files with `read_image`, in parallel threads.

    Threads help because Pillow releases the GIL while it decodes and resizes.
    """
    count, broken = len(paths), {}
    pixels, lost = np.zeros((count, 3, size, size), np.uint8), np.zeros(count, np.float32)

    def one(index: int) -> None:
        try:
            image, lost[index] = read_image(paths[index], size, max_pixels, fit)
            pixels[index] = image.transpose(2, 0, 1)
        except BrokenImage as error:
            broken[index] = str(error)

    # More threads would wait for the GIL.
    with (
        ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool,
        tqdm(total=count, desc="decoding", unit="images", disable=None, leave=False) as bar,
    ):
        for _ in pool.map(one, range(count)):
            bar.update()
    return Decoded(torch.from_numpy(pixels), dict(sorted(broken.items())), torch.from_numpy(lost))


# Part of every key; increase it when `decode` returns something different for the same file.
DECODER = 4


def decode_cached(paths: Sequence[Path], size: int, max_pixels: int, fit: str) -> Decoded:
    """Decode the files, or return the cached result of an earlier call for unchanged files.

    Files are unchanged if their paths, sizes and modification times are equal. The other arguments
    must be equal, too. A result with broken files is not cached, because the fault may lie with the
    machine, not with the files.
    """
    key = hashlib.sha256(f"{DECODER} {PIL.__version__} {size} {max_pixels} {fit}".encode())
    for path in paths:
        facts = path.stat() if path.exists() else None
        key.update(repr((path.absolute(), facts and (facts.st_size, facts.st_mtime_ns))).encode())
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    entry = Path(base, "vit_train", "decoded", f"{key.hexdigest()[:32]}.pt")
    if entry.is_file():
        try:
            return Decoded(*torch.load(entry, weights_only=True, mmap=True))
        except Exception as error:  # any error, if the file is damaged
            logger.warning(
                f"{entry}, a cache of decoded images, is damaged ({type(error).__name__}): "
                "decoding the files again"
            )
    decoded = decode(paths, size, max_pixels, fit)
    if decoded.broken:
        return decoded
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with replacing(entry) as file:
            torch.save(tuple(decoded), file)
    except (OSError, RuntimeError) as error:  # raised by PyTorch if the disk is full
        logger.warning(f"the decoded images could not be cached: {error}")
    return decoded


# An image counts as flat if no channel spans more gray levels: 12-bit values in a 16-bit file.
FLAT = 15
# The share of an image's area outside the square in its center.
MUCH = 0.2


@dataclass
class Doubts:
    """Decoded files to warn about: images with almost no contrast, or with much cropped off."""

    flat: list[Path] = field(default_factory=list)
    cropped: list[Path] = field(default_factory=list)

    def note(self, paths: Sequence[Path], images: Tensor, lost: Sequence[float]) -> None:
        """Record the files to warn about.

        `images` (N,C,S,S) are the images of all `paths`; `lost` (N,) is the share of each image's
        area that was cropped off.
        """
        values = images.flatten(2)
        contrast = (values.amax(2) - values.amin(2)).amax(1).tolist()
        self.flat += [path for path, each in zip(paths, contrast, strict=True) if each <= FLAT]
        self.cropped += [path for path, share in zip(paths, lost, strict=True) if share > MUCH]

    def warn(self) -> None:
        advice = ": if they have 16 bits, rescale their values to 0 to 65,535"
        warn_of(self.flat, "image", "with almost no contrast", advice)
        center = ": only the central square is read"
        warn_of(self.cropped, "image", "cropped by more than a fifth of the area", center)
