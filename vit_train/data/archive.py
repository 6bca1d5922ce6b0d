"""Data sets published as one .tar.gz: obtained once, unpacked, every file checked.

Only the published archive, recognized by its MD5, is ever unpacked: a hostile one is refused before
any of its headers is read.
"""

import logging
import shutil
import tarfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from vit_train.base.locking import Taken, exclusive
from vit_train.base.writing import remove_partial, replacing
from vit_train.data.config import ArchiveConfig
from vit_train.data.download import download, has_md5

logger = logging.getLogger(__name__)

# Seconds between two checks for whether another process has released the lock.
POLL = 0.1


@dataclass(frozen=True)
class Archive:
    """A published archive; `members` are the files needed from its `folder`."""

    title: str
    filename: str
    md5: str
    size: str  # for people
    folder: str
    members: dict[str, str]  # name → MD5
    max_bytes: int  # neither the archive nor a member is larger


def obtain(archive: Archive, config: ArchiveConfig) -> Path:
    """Return the folder that holds the archive's members, each with the right MD5.

    Missing or damaged members are unpacked from the archive if it is in config.root, or else
    downloaded if config.download is set. One process at a time does this. If it fails, raise
    ValueError with what the user can do.
    """
    root = Path(config.root)
    if root.name == archive.folder and root.is_dir():
        raise ValueError(
            f"data.root={root}: give the folder that holds it, data.root={root.parent}"
        )
    if not (lacking := missing(archive, root)):
        return root / archive.folder
    if not config.download and not (root / archive.filename).is_file():
        raise ValueError(how_to_get(archive, root, lacking))
    root.mkdir(parents=True, exist_ok=True)
    with locked(root / f".{archive.folder}.lock"):
        if missing(archive, root):  # no other process has fetched them during the wait
            unpack_or_download(archive, config, root)
    return root / archive.folder


def missing(archive: Archive, root: Path) -> list[str]:
    """Return the names of the members that are absent or damaged."""
    folder, limit = root / archive.folder, archive.max_bytes
    return [name for name, md5 in archive.members.items() if not has_md5(folder / name, md5, limit)]


def unpack_or_download(archive: Archive, config: ArchiveConfig, root: Path) -> None:
    """Unpack the archive in `root`, or else download one, which is deleted after unpacking."""
    local = root / archive.filename
    if has_md5(local, archive.md5, archive.max_bytes):
        return unpack(archive, root)
    if not config.download:
        raise ValueError(
            f"{local} is damaged or another archive: its MD5 is not {archive.md5}\n"
            "Set data.download=true to download the right one"
        )
    download(config.urls, local, archive.md5, archive.max_bytes)
    unpack(archive, root)
    local.unlink()


def unpack(archive: Archive, root: Path) -> None:
    """Write the members below `root`, each complete or not at all.

    Only regular files whose path is wanted are written, so that links, devices and paths that
    climb out of root have no effect.
    """
    path, folder = root / archive.filename, root / archive.folder
    logger.info(f"unpacking {path}")
    folder.mkdir(exist_ok=True)
    remove_partial(folder)  # left by a killed process
    wanted = {f"{archive.folder}/{name}": folder / name for name in missing(archive, root)}
    with tarfile.open(path, "r:gz") as tar:
        for member in tar:
            target = wanted.get(member.name.removeprefix("./"))
            if target and member.isreg() and (content := tar.extractfile(member)):
                with replacing(target) as file:
                    shutil.copyfileobj(content, file)
    if lacking := missing(archive, root):
        raise ValueError(f"{path} does not contain the right {', '.join(lacking)}")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, waiting for it if needed; a killed process releases it, too."""
    with ExitStack() as held:
        for attempt in count():
            try:
                held.enter_context(exclusive(path))
                break
            except Taken as taken:
                if attempt == 0:
                    logger.info(f"{taken.holder} is fetching this data: waiting{taken.remedy}")
                time.sleep(POLL)
        yield


def how_to_get(archive: Archive, root: Path, lacking: list[str]) -> str:
    """Describe missing or damaged members and the ways to get them."""
    folder = root.resolve() / archive.folder
    fault = f"{', '.join(lacking)} missing or damaged" if folder.is_dir() else "no such folder"
    return (
        f"cannot read {archive.title} from {folder}: {fault}\n"
        f"  - data.download=true downloads it there ({archive.size})\n"
        f"  - data.root=FOLDER (without a run also $VIT_TRAIN_DATA) names the folder that holds "
        f"{archive.folder}/ or {archive.filename}\n"
        "  - vit-train data=shapes needs none: its data are built in"
    )
