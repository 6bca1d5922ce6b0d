"""Paths of image files, as a user names them."""

import glob
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit_train.data.doubts import WRONG_FORMAT, warn_of_passed_over
from vit_train.data.folder import by_suffix, walk
from vit_train.data.images import SUFFIXES


def image_files(images: Any) -> list[Path]:
    """Return the files that are meant; raise ValueError if there are none."""
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
