"""Data sets published as one .tar.gz: downloaded if needed, unpacked safely, always checked."""

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO

from vit_train.data.config import ArchiveConfig
from vit_train.data.download import (
    DownloadError,
    MirroredStream,
    fetch_file,
    has_md5,
    new_md5,
    warn_of_others,
)
from vit_train.data.targz import DamagedArchive, Unpacked, files
from vit_train.files.locking import Taken, exclusive
from vit_train.files.reading import open_regular
from vit_train.files.writing import remove_partial, replacing

logger = logging.getLogger(__name__)

# Seconds between two looks at whether another process has fetched the data.
POLL = 0.1


@dataclass(frozen=True)
class Archive:
    """A published archive; `members` are the files needed from its `folder`."""

    title: str
    filename: str
    md5: str
    size: str
    folder: str
    members: dict[str, str]  # name → MD5
    max_bytes: int  # an archive that unpacks to more is not the real one
    # Unpack while downloading and do not keep it: for one much larger than the needed members.
    streamed: bool = False


def obtain(archive: Archive, config: ArchiveConfig) -> Path:
    """Return the folder that holds the archive's members, each with the right MD5.

    Missing or damaged members are unpacked from the archive if it is in config.root, or else
    downloaded if config.download is set. One process at a time does this; a member appears under
    its name only when it is complete. If it fails, raise ValueError with what the user can do.
    """
    root = Path(config.root)
    if root.name == archive.folder and root.is_dir():
        raise ValueError(
            f"data.root={root}: give the folder that holds it, data.root={root.parent}"
        )
    if not (wanted := missing(archive, root)):
        return root / archive.folder
    if not config.download and not (root / archive.filename).is_file():
        raise ValueError(how_to_get(archive, root, wanted))
    root.mkdir(parents=True, exist_ok=True)
    with locked(root / f".{archive.folder}.lock"):
        if (root / archive.folder).is_dir():
            remove_partial(root / archive.folder)  # left by a killed process
        # Check again: another process may have fetched them during the wait.
        if wanted := missing(archive, root):
            unpack_or_fetch(archive, config, root, wanted)
    return root / archive.folder


def missing(archive: Archive, root: Path) -> dict[str, str]:
    """Return the members that are absent or damaged: path inside the archive → MD5."""
    paths = {f"{archive.folder}/{name}": md5 for name, md5 in archive.members.items()}
    return {
        path: md5 for path, md5 in paths.items() if not has_md5(root / path, md5, archive.max_bytes)
    }


def unpack_or_fetch(
    archive: Archive, config: ArchiveConfig, root: Path, wanted: dict[str, str]
) -> None:
    local = root / archive.filename
    if local.is_file():
        try:
            return extract_file(local, root, wanted, archive.max_bytes)
        except DamagedArchive as error:
            if not config.download:
                raise DamagedArchive(
                    f"{local}: {error}\nSet data.download=true to download another"
                ) from error
            logger.warning(f"{local}: {error}; downloading another")
    if not config.urls:
        raise ValueError("data.urls is empty: there is nothing to download from")
    try:
        if archive.streamed:
            stream_from_mirrors(archive, config.urls, root, wanted)
        else:
            fetch_file(config.urls, local, archive.md5, max_bytes=archive.max_bytes)
            extract_file(local, root, wanted, archive.max_bytes)
    except DownloadError as error:
        raise DownloadError(
            f"{error}\nOr put {archive.filename} (MD5 {archive.md5}) at {local.resolve()} "
            "by hand, and run the same command again"
        ) from error


def stream_from_mirrors(
    archive: Archive, urls: list[str], root: Path, wanted: dict[str, str]
) -> None:
    """Unpack while downloading; if a mirror sends wrong bytes, try the next one.

    Raise DownloadError if no mirror delivers the members.
    """
    for i, url in enumerate(urls):
        try:
            with MirroredStream(urls[i:], archive.filename) as stream:
                extract(stream, root, wanted, archive.max_bytes)
                return warn_of_others(stream.failures, stream)
        except DamagedArchive as error:
            logger.warning(f"{url}: {error}")
    raise DownloadError(f"no mirror delivered an undamaged {archive.filename}")


def extract_file(path: Path, root: Path, wanted: dict[str, str], max_bytes: int) -> None:
    logger.info(f"unpacking {path}")
    with open_regular(path) as file:
        extract(file, root, wanted, max_bytes)


def extract(
    compressed: IO[bytes] | MirroredStream, root: Path, wanted: dict[str, str], max_bytes: int
) -> None:
    """Write the wanted members (path → MD5) of a .tar.gz below root, and stop reading after them.

    Only regular files whose path is wanted are written, so that links, devices and paths that
    climb out of root have no effect. Raise DamagedArchive if a member is missing or damaged.
    """
    still = dict(wanted)
    for path, content in files(Unpacked(compressed, max_bytes)):
        if path in still:
            write_member(content, root / path, still.pop(path))
        if not still:
            return
    raise DamagedArchive(f"the archive is damaged: it lacks {', '.join(still)}")


def write_member(content: Iterable[bytes], target: Path, md5: str) -> None:
    """Write a member whole or not at all; raise DamagedArchive if the MD5 is wrong."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = new_md5()
    with replacing(target) as file:
        for chunk in content:
            digest.update(chunk)
            file.write(chunk)
        if digest.hexdigest() != md5:
            raise DamagedArchive(f"{target.name} in it has MD5 {digest.hexdigest()}, not {md5}")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock file, waiting for it if needed; a killed process releases it, too."""
    with ExitStack() as held:
        for waits in count():
            try:
                held.enter_context(exclusive(path))
                break
            except Taken as taken:
                if not waits:
                    logger.info(
                        f"{taken.holder} is fetching the same data: waiting for it{taken.remedy}"
                    )
                time.sleep(POLL)
        yield


def how_to_get(archive: Archive, root: Path, wanted: Iterable[str]) -> str:
    """Say that these members are missing or damaged, and what can be done."""
    folder = root.resolve() / archive.folder
    lacking = [path.rpartition("/")[2] for path in wanted]
    fault = f"{', '.join(lacking)} missing or damaged" if folder.is_dir() else "no such folder"
    return (
        f"cannot read {archive.title} from {folder}: {fault}\n"
        f"  - data.download=true downloads it there ({archive.size})\n"
        f"  - data.root=FOLDER (without a run also $VIT_TRAIN_DATA) names the folder that holds "
        f"{archive.folder}/ or {archive.filename}\n"
        "  - vit-train data=shapes needs none: its data are built in"
    )
