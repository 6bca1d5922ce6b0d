"""Writing of files: whole or not at all, and never through a link."""

import contextlib
import errno
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from vit_train.base.reading import Refused, naming

# Errors of the disk: it or the user's share of it is full, the file too large, or the disk bad or
# read-only.
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file that takes the name `path` when the block has ended and it is on disk.

    A reader sees the old file or the complete new one; a link of that name is replaced, not
    followed. After a failure everything is as it was. Raise Refused for a device or a pipe, which
    a file would replace, too.
    """
    if not path.is_symlink() and path.exists() and not (path.is_file() or path.is_dir()):
        raise Refused(f"{path} is not a regular file, and would be replaced: name another")
    # One for each thread, so that two writers of the same file do not mix their bytes.
    writer = f"{os.getpid()}-{threading.get_ident()}"
    partial = path.with_name(f"{path.name}.{writer}.partial")
    try:
        partial.unlink(missing_ok=True)
        with partial.open("xb") as file:  # never through a link that was put there
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException as error:
        partial.unlink(missing_ok=True)  # on a full disk every byte counts
        name_target(error, partial, path)
        raise


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Make a folder that takes the name `path` when the block has ended and it is on disk.

    Raise Refused if there is one already. After a failure everything is as it was.
    """
    if path.is_symlink() or path.exists():
        raise Refused(f"{path} exists already: remove it, or name another folder")
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        yield partial
        sync_folder(partial)
        partial.rename(path)
        sync_folder(path.parent)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        name_target(error, partial, path)
        raise


def name_target(error: BaseException, partial: Path, path: Path) -> None:
    """Let an error name the file that was asked for, not the one that was to become it.

    One of writing, as on a full disk, names none.
    """
    if not isinstance(error, OSError):
        return
    nameless = error.errno in DISK and error.filename is None
    if nameless or error.filename == str(partial):
        error.filename = str(path)


def remove_partial(folder: Path, seconds: float = 0) -> None:
    """Remove unfinished files, left by killed processes, that are at least `seconds` old."""
    for path in folder.glob("*.partial"):
        with contextlib.suppress(FileNotFoundError):  # its writer has just finished it
            is_file = path.is_symlink() or not path.is_dir()
            if is_file and time.time() - path.lstat().st_mtime >= seconds:
                path.unlink()


def write_text(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode())


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write JSON, with null for NaN and infinity, which JSON does not have."""
    plain = json.loads(json.dumps(content), parse_constant=lambda name: None)
    write_text(path, json.dumps(plain, indent=2, allow_nan=False) + "\n")


def open_to_append(path: Path) -> IO[str]:
    """Open a regular or new file for appending text; raise Refused for anything else."""
    require_own_file(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | NO_LINK, 0o666)
    return open(descriptor, "a", encoding="utf-8")


def write_from(path: Path, start: int, content: bytes | bytearray) -> None:
    """Replace all that follows the first `start` bytes of a regular file; from 0 on, make it new.

    Raise Refused for anything else, and FileNotFoundError for a file that is no longer there.
    """
    require_own_file(path)
    new = 0 if start else os.O_CREAT
    try:
        descriptor = os.open(path, os.O_WRONLY | new | NO_LINK | BINARY, 0o666)
        with open(descriptor, "wb") as file:
            file.truncate(start)
            file.seek(start)
            file.write(content)
    except OSError as error:
        error.filename = str(path)  # one of writing, as on a full disk, names none
        raise


def truncate(path: Path, length: int) -> None:
    """Cut a regular file to `length` bytes; raise Refused for anything else."""
    require_own_file(path)
    descriptor = os.open(path, os.O_WRONLY | NO_LINK)
    try:
        with naming(path):
            os.ftruncate(descriptor, length)
    finally:
        os.close(descriptor)


# Makes opening fail if the file has become a link since it was checked.
NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)  # not on Windows
BINARY: int = getattr(os, "O_BINARY", 0)  # on Windows alone


def require_own_file(path: Path) -> None:
    """Raise Refused for a link or anything else but a regular file, such as a pipe or device."""
    require_own(path, path.is_file(), "regular file")


def require_own_folder(path: Path) -> None:
    """Raise Refused for a link, or for anything that exists and is not a folder."""
    require_own(path, path.is_dir(), "folder")


def make_folder(path: Path) -> None:
    """Make a folder for results; raise ValueError if that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}: choose another out=") from error


def require_own(path: Path, fits: bool, kind: str) -> None:
    if path.is_symlink():
        raise Refused(f"{path} is a symbolic link, and nothing is written through links: remove it")
    if path.exists() and not fits:
        raise Refused(f"{path} is not a {kind}: remove it")


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable, where folders can be opened (not on Windows)."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with naming(folder):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def save_archive(path: Path, archive: bytes, keep: int = 0) -> None:
    """Write a file, of which no reader ever sees a part.

    It is written beside the target, flushed to the disk, and then renamed. Up to `keep` older
    files remain: NAME-1.pt, the newest of them, NAME-2.pt and so on. Between two renames there is
    no NAME.pt: NAME-1.pt is the newest one then. If writing fails with OSError, everything stays as
    it was; if the last rename fails, NAME-1.pt is the newest one.
    """
    path.parent.mkdir(exist_ok=True)  # no parents=True: a vanished mount is not recreated
    with replacing(path) as file:
        file.write(archive)
        file.flush()
        os.fsync(file.fileno())  # before an older file is renamed
        for age, younger in reversed(list(enumerate(generations(path)[:keep], start=1))):
            younger.replace(path.with_stem(f"{path.stem}-{age}"))
    for old in generations(path)[keep + 1 :]:
        old.unlink()
    sync_folder(path.parent)


def generations(path: Path) -> list[Path]:
    """Return this file and its older versions, those that exist, newest first."""
    pattern = re.compile(rf"{re.escape(path.stem)}(-[1-9]\d*)?{re.escape(path.suffix)}")
    found = [file for file in path.parent.glob("*") if pattern.fullmatch(file.name)]
    return sorted(found, key=lambda file: (len(file.name), file.name))  # last-10 after last-9
