"""File writes that are atomic, and locks between processes."""

import contextlib
import errno
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from vit_train.base.log import logger
from vit_train.base.reading import Refused

if sys.platform != "win32":
    import fcntl


@contextlib.contextmanager
def replacing(path: Path, keep: int = 0) -> Iterator[IO[bytes]]:
    """Yield a new file that replaces `path` when the block ends without an error.

    Keep up to `keep` older versions of the file, renamed so that `generations` finds them.

    Other programs see either the old file or the complete new file. If `path` is a symbolic link,
    replace the link, not the link's target. If the block fails, no file changes. Raise Refused if
    `path` is a device or a pipe.
    """
    if not path.is_symlink() and path.exists() and not (path.is_file() or path.is_dir()):
        raise Refused(
            f"{path} is not a regular file, so it cannot be replaced: choose another name"
        )
    # A name for each thread, so that two writers of the same file do not mix their bytes.
    partial = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.partial")
    try:
        with partial.open("xb") as file:  # never through a link that somebody put there
            with contextlib.suppress(OSError):  # a file system without locks
                lock(file, wait=True)  # so that `remove_partial` leaves it
            yield file
            file.flush()
            os.fsync(file.fileno())
        versions = generations(path)[:keep]
        # The oldest first, so that only the version beyond `keep` is lost.
        for age in range(len(versions), 0, -1):
            versions[age - 1].replace(path.with_stem(f"{path.stem}-{age}"))
        partial.replace(path)
    except BaseException as error:
        partial.unlink(missing_ok=True)  # on a full disk, every byte counts
        # A write error, as on a full disk, does not name the file.
        if isinstance(error, OSError) and error.filename in (None, str(partial)):
            error.filename = str(path)
        raise


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Create a folder and yield its path; if the block fails, delete the folder and its content."""
    path.mkdir()
    try:
        yield path
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def remove_partial(*folders: Path) -> None:
    """Remove the folders' *.partial files that no process is writing.

    Such files are left by killed processes. Where locks are not supported, they stay.
    """
    for path in (path for folder in folders for path in folder.glob("*.partial")):
        with contextlib.suppress(OSError), path.open("rb") as file:
            lock(file, wait=False)
            path.unlink()


def write_text(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode())


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file, with null for NaN and infinity, which JSON cannot represent."""
    plain = json.loads(json.dumps(content), parse_constant=lambda name: None)
    write_text(path, json.dumps(plain, indent=2) + "\n")


def write_from(path: Path, start: int, content: bytes | bytearray) -> None:
    """Keep the first `start` bytes of a file, and replace all later bytes with `content`.

    A missing file is created if `start` is 0; otherwise, raise FileNotFoundError.
    """
    try:
        with path.open("r+b" if start else "wb") as file:
            file.truncate(start)
            file.seek(start)
            file.write(content)
    except OSError as error:
        error.filename = str(path)  # a write error, as on a full disk, does not name the file
        raise


class InUse(ValueError):
    """Raised if a folder already contains a run, or if another process writes into the folder."""


@contextlib.contextmanager
def exclusive(path: Path, waiting: str = "") -> Iterator[None]:
    """Within the block, hold an exclusive lock on the file `path`.

    If another process already holds the lock, log the message `waiting` and wait for the lock. If
    `waiting` is "", do not wait, but raise InUse. If the file system does not support locks, log a
    warning and continue. If this process dies, the operating system releases the lock.
    """
    with path.open("a", encoding="utf-8") as file:
        try:
            lock(file, wait=False)
        except BlockingIOError as taken:
            if not waiting:
                raise InUse(
                    f"another process is writing into {path.parent}: stop it first"
                ) from taken
            logger.info(waiting)
            lock(file, wait=True)
        except OSError as error:  # as on NFS without its lock service, and on some FUSE systems
            logger.warning(
                f"{path} cannot be locked ({error.strerror}): "
                "make sure that no other process writes into the same folder"
            )
            file.close()  # Windows cannot delete an open file
        yield


def lock(file: IO[Any], wait: bool) -> None:
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, "not supported on Windows")
    fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def save_archive(path: Path, archive: bytes, keep: int | None = None) -> None:
    """Write a file atomically; keep up to `keep` older versions, and delete those beyond.

    If `keep` is None, replace the file and leave all others.

    The older versions of last.safetensors are last-1.safetensors (the newest), last-2.safetensors
    and so on. If the process is killed just before the last rename, last.safetensors is missing,
    and last-1.safetensors is the newest version. If writing raises OSError, no file changes.
    """
    path.parent.mkdir(exist_ok=True)  # not its parents, so that no vanished mount is recreated
    with replacing(path, keep or 0) as file:
        file.write(archive)
    for old in generations(path)[keep + 1 :] if keep is not None else ():
        old.unlink()


def generations(path: Path) -> list[Path]:
    """Return the existing versions of a file, newest first.

    For last.safetensors, these are last.safetensors, last-1.safetensors, last-2.safetensors and so
    on.
    """
    pattern = re.compile(rf"{re.escape(path.stem)}(-[1-9]\d*)?{re.escape(path.suffix)}")
    found = [file for file in path.parent.glob("*") if pattern.fullmatch(file.name)]
    return sorted(found, key=lambda file: (len(file.name), file.name))  # last-10 after last-9
