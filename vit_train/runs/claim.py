"""Whose folder it is: a run's folder has one writer at a time, and no run replaces another."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from vit_train.files.writing import require_own_file

LOCK = ".lock"
# Is there from a run's first step to its end, and after it.
CONFIG = "config.yaml"


class InUse(ValueError):
    """The folder belongs to another run, or another process is at work in it."""


@contextlib.contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold the folder as long as this lasts; InUse if another process does.

    The system lets go of it when the process ends, however it ends.
    """
    path = folder / LOCK
    require_own_file(path)
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise InUse(f"another process is training in {folder}: end it first") from error
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def new_run(folder: Path, named: bool) -> Iterator[Path]:
    """Hold a folder for a new run; InUse if there is a run in it, or another process holds it.

    A name that nobody chose is followed by a number then, -2 for the second. A run that ends before
    it has begun leaves nothing.
    """
    with contextlib.ExitStack() as held:
        for number in itertools.count(1):
            path = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
            try:
                held.enter_context(unused(path))
                break
            except InUse:
                if named:
                    raise
        yield path


@contextlib.contextmanager
def unused(folder: Path) -> Iterator[None]:
    """Hold it; what was not there before is removed if no run has begun in it at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.iterdir())
    with removed_if_empty(folder), sole_writer(folder):
        taken = (folder / CONFIG).exists()
        try:
            if taken:
                raise InUse(
                    f"{folder} already holds a run: choose another hydra.run.dir, or go on with "
                    f"resume={folder}"
                )
            yield
        finally:
            if taken or not (folder / CONFIG).exists():
                for path in set(folder.iterdir()) - before:
                    path.unlink()


@contextlib.contextmanager
def removed_if_empty(folder: Path) -> Iterator[None]:
    """Hydra makes a command's folder before anything is known of its settings."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # something is in it
            folder.rmdir()
