"""Exclusive use of a run's folder: it has one writer at a time, and no run replaces another."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

from vit_train.files.locking import Taken, exclusive
from vit_train.runs.paths import holds_run, resume_command

LOCK = ".lock"
# What a run writes before its first step.
BEGUN = (LOCK, "train.log")


class InUse(ValueError):
    """The folder belongs to another run, or another process is using it."""


@contextlib.contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold the folder within the block; raise InUse if another process holds it."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(exclusive(folder / LOCK))
        except Taken as taken:
            raise InUse(
                f"{taken.holder} is training in {folder}: end it first{taken.remedy}"
            ) from taken
        yield


@contextlib.contextmanager
def new_run(folder: Path, named: bool) -> Iterator[Path]:
    """Hold a folder for a new run; raise InUse if it contains a run or another process holds it.

    Unless the user `named` the folder, a number is added to its name instead, -2 for the second. A
    run that ends before it has begun leaves nothing behind, nor empty folders above its own.
    """
    with contextlib.ExitStack() as held:
        for number in itertools.count(1):
            path = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
            try:
                held.enter_context(unused(path, named))
                break
            except InUse:
                if named:
                    raise
        yield path


@contextlib.contextmanager
def unused(folder: Path, named: bool) -> Iterator[None]:
    """Hold the folder; on exit, remove the run's files written meanwhile, unless it has begun.

    Raise InUse if it already contains a run or another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.iterdir())
    with removed_if_empty(folder, named), sole_writer(folder):
        taken = holds_run(folder)
        try:
            if taken:
                raise InUse(
                    f"{folder} already holds a run: choose another folder, or resume it with "
                    f"{resume_command(folder)}"
                )
            yield
        finally:
            if taken or not holds_run(folder):
                for path in {folder / name for name in BEGUN} - before:
                    if path.is_file():
                        path.unlink()


@contextlib.contextmanager
def removed_if_empty(folder: Path, named: bool) -> Iterator[None]:
    """Remove the folder at the end if it is empty, and on the disk that it was on.

    Unless the user `named` it, so are those above it, up to the current one: Hydra creates
    outputs/NAME/TIME before the command's settings are checked.
    """
    disk = folder.stat().st_dev if folder.exists() else None
    try:
        yield
    finally:
        here = Path.cwd()
        above = [path for path in folder.absolute().parents if here in path.parents]
        with contextlib.suppress(OSError):  # one is not empty, or no longer there
            if disk in (None, folder.stat().st_dev):  # else a disk was mounted there
                for path in (folder, *([] if named else above)):
                    path.rmdir()
