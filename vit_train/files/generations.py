"""A file that is replaced in one step, and its older versions beside it."""

import os
import re
from pathlib import Path

from vit_train.files.writing import replacing, sync_folder


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
