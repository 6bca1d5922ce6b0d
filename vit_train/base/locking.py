"""A lock file, which one process holds at a time, also where the file system has no locks."""

import contextlib
import errno
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, SoftFileLock, Timeout

from vit_train.base.reading import read_text
from vit_train.base.writing import NO_LINK, require_own_file

logger = logging.getLogger(__name__)

if sys.platform != "win32":
    import fcntl


# What NFS without its lock service answers, some FUSE file systems, and some kernels.
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
OWNER_BYTES = 1024


class Taken(Exception):
    """Another process has the lock: the `holder`, in words, and a `remedy` if it is dead, or ""."""

    def __init__(self, holder: str, remedy: str = "") -> None:
        super().__init__(holder)
        self.holder, self.remedy = holder, remedy


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock file within the block; raise Taken if another process holds it.

    The operating system releases it when the process ends, however it ends. Where the file system
    has no locks, a file NAME-owner with this process and host is the lock instead.
    """
    require_own_file(path)
    owner = path.with_name(f"{path.name}-owner")
    with contextlib.ExitStack() as held:
        missing = None
        try:
            held.enter_context(system_lock(path))
        except (BlockingIOError, Timeout) as error:
            raise Taken("another process") from error
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            missing = error.strerror
        if missing or owner.exists():  # made by a process for which there was no lock
            held.enter_context(owned(owner))
        if missing:
            logger.warning(
                f"{path}: {missing}: {owner.name} is the lock instead. If this process is killed, "
                "that file may have to be removed by hand"
            )
        yield


@contextlib.contextmanager
def system_lock(path: Path) -> Iterator[None]:
    """Hold a lock of the operating system; raise BlockingIOError or Timeout if it is taken.

    filelock takes a denied permission for another process that holds the lock.
    """
    if sys.platform == "win32":
        with FileLock(path, timeout=0):
            yield
    else:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | NO_LINK, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                error.filename = str(path)
                raise
            yield
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def owned(path: Path) -> Iterator[None]:
    """Hold a file by its existence; raise Taken if it is another process's, unless that is dead.

    Whether it is can be told on its own host alone.
    """
    require_own_file(path)
    lock = SoftFileLock(path, timeout=0.1)  # twice, because a dead one's is removed first
    try:
        lock.acquire()
    except Timeout as error:
        raise Taken(owner_in(path), f"; if it no longer runs, remove {path}") from error
    try:
        yield
    finally:
        lock.release()


def owner_in(path: Path) -> str:
    """Return the process and the host that filelock has noted."""
    with contextlib.suppress(OSError, ValueError):
        process, host, *_ = read_text(path, OWNER_BYTES).splitlines()
        return f"process {process} on {host}"
    return "another process"
