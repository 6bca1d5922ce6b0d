"""Find the image files that the user names."""

import glob
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from vit_train.base.log import logger
from vit_train.base.text import counted, printable

# The formats that are read, as Pillow names them, and their suffixes.
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "AVIF", "JPEG2000", "PPM")
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"),
    *(".avif", ".jp2", ".ppm", ".pgm"),
)
NAMED_FORMATS = "JPEG, PNG, WebP, BMP, TIFF, GIF, AVIF, JPEG 2000, PPM or PGM"
NAMED_AT_MOST = 10


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
        skip(others)
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
    return sorted(child for child in folder.glob("*") if is_visible(child.name))


def is_visible(name: str) -> bool:
    """Return False for hidden files, and for the folder that macOS adds to archives."""
    return not name.startswith((".", "__MACOSX"))


def walk(folder: Path) -> list[Path]:
    """Return all files in a folder and its subfolders, sorted, without hidden ones.

    Warn about links to folders, which are not followed, and about unreadable folders.
    """
    files = []
    links = []
    for place, folders, names in os.walk(
        folder,
        onerror=lambda error: logger.warning(
            f"skipped the unreadable folder {error.filename}: {error.strerror}"
        ),
    ):
        folders[:] = filter(is_visible, folders)
        links += [path for name in folders if (path := Path(place) / name).is_symlink()]
        files += [Path(place) / name for name in filter(is_visible, names)]
    if links:
        logger.warning(f"ignored links to folders:{bulleted(sorted(links))}")
    return sorted(files)


def bulleted(lines: Sequence[object]) -> str:
    """Return the first NAMED_AT_MOST lines as a bulleted list, and the number of lines left out."""
    more = len(lines) - NAMED_AT_MOST
    named = "".join(f"\n  - {printable(str(line))}" for line in lines[:NAMED_AT_MOST])
    return named + (f"\n  and {more} more" if more > 0 else "")


def warn_of(paths: Sequence[Path], noun: str, fault: str) -> None:
    """Log the warning "3 NOUNs FAULT, such as PATH", unless `paths` is empty."""
    if paths:
        first = printable(str(paths[0]))
        logger.warning(f"{counted(len(paths), noun)} {fault}, such as {first}")


def skip(files: Iterable[Path]) -> dict[Path, str]:
    """Return the reason for which each file is not read as an image.

    Log a warning for each reason, with the number of files by suffix.
    """
    reasons = {
        path: "not in a class folder"
        if path.suffix.lower() in SUFFIXES
        else f"not called {NAMED_FORMATS}; convert HEIC photos to JPEG"
        for path in files
    }
    for reason in dict.fromkeys(reasons.values()):
        paths = [path for path, each in reasons.items() if each == reason]
        counts = Counter(printable(path.suffix.lower()) or "without extension" for path in paths)
        named = [f"{count:,} {suffix}" for suffix, count in counts.most_common(NAMED_AT_MOST)]
        warn_of(paths, "file", f"skipped ({', '.join(named)}; {reason})")
    return reasons
