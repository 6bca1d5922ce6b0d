"""Image files as a user names them, and warnings about them."""

import glob
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from vit_train.base.text import counted, printable
from vit_train.data.images import SUFFIXES

logger = logging.getLogger(__name__)

# Gray levels between the darkest and the brightest pixel of a channel: 12 bits in a file of 16 have
# no more.
FLAT = 15
# The share of an image's area beyond the square in its center.
MUCH = 0.2
WRONG_FORMAT = "not JPEG, PNG, WebP or BMP"


def are_flat(images: Tensor) -> Tensor:
    """Find uint8 images (N,C,S,S) of nearly one color throughout: bool (N,)."""
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


NAMED_AT_MOST = 10


def image_files(images: Any) -> list[Path]:
    """Return the image files that a setting names; raise ValueError if no file matches."""
    names = images if isinstance(images, list) else [images]
    if names == ["-"]:
        return [path for name in names_on_stdin() for path in named(name)]
    if not names:
        raise ValueError("images=[] names no file")
    return [path for name in names for path in files_at(str(name))]


def names_on_stdin() -> list[str]:
    """Return the lines of standard input, as other programs write paths; raise ValueError if none.

    A name may have any byte but the end of a line, and need not be UTF-8.
    """
    if sys.stdin is None:
        raise ValueError("images=- reads paths from standard input, which is closed")
    lines = sys.stdin.buffer.read().split(b"\n")
    if os.name == "nt":
        lines = [line.removesuffix(b"\r") for line in lines]
    if not any(lines):
        raise ValueError("images=- found no path on standard input")
    return [os.fsdecode(line) for line in lines if line]


def named(name: str) -> Sequence[Path]:
    """Return the files at a name on standard input; one that means none stands for itself.

    What cannot be read is then said of it, and of it alone.
    """
    try:
        return files_at(name)
    except (OSError, ValueError):
        return [Path(name)]


def files_at(name: str) -> Sequence[Path]:
    """Return a file, the images below a folder, or those that a pattern matches."""
    path = Path(os.path.expanduser(name))  # Path's own fails for ~photo.jpg
    if path.is_dir():
        found, others = by_suffix(walk(path))
        if found:
            warn_of_passed_over(others, WRONG_FORMAT)
    elif path.exists():
        return [path]
    else:
        matches = map(Path, sorted(glob.glob(str(path), recursive=True)))
        found = [match for match in matches if not match.is_dir()]
    if not found and not path.is_dir() and not glob.has_magic(name):
        raise ValueError(f"images={name}: there is no such file or folder")
    if not found:
        raise ValueError(f"images={name}: there is no image of {', '.join(SUFFIXES)}")
    return found


def by_suffix(files: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the files that are named as images are, and the others."""
    named = [path for path in files if path.suffix.lower() in SUFFIXES]
    return named, [path for path in files if path.suffix.lower() not in SUFFIXES]


def visible(folder: Path) -> list[Path]:
    """Return a folder's entries, sorted, without hidden ones; none if there is no such folder."""
    if not folder.is_dir():
        return []
    return sorted(child for child in folder.iterdir() if not child.name.startswith("."))


def walk(folder: Path) -> list[Path]:
    """Return all visible files below the folder, sorted.

    Warn of linked folders, which are never entered, and of those that cannot be read.
    """
    files, links = [], []
    unread: list[OSError] = []
    for place, folders, names in os.walk(folder, onerror=unread.append):
        folders[:] = [name for name in folders if not name.startswith(".")]
        links += [path for name in folders if (path := Path(place) / name).is_symlink()]
        files += [Path(place) / name for name in names if not name.startswith(".")]
    if links:
        logger.warning(f"linked folders that are not read:{listed(sorted(links))}")
    if unread:
        places = [Path(str(error.filename)) for error in unread]
        reasons = [error.strerror or "" for error in unread]
        logger.warning(f"folders that cannot be read:{listed(places, reasons)}")
    return sorted(files)


def listed(paths: list[Path], reasons: list[str] | None = None) -> str:
    """List the first NAMED_AT_MOST paths, one per line, then say how many more there are."""
    lines = [printable(str(path)) for path in paths[:NAMED_AT_MOST]]
    if reasons:
        lines = [f"{line}: {reason}" for line, reason in zip(lines, reasons, strict=False)]
    more = len(paths) - len(lines)
    return "".join(f"\n  - {line}" for line in lines) + (f"\n  and {more} more" if more else "")
