"""Published data sets: CIFAR-10, CIFAR-100 and STL-10, each downloaded once, as a .tar.gz.

Only an archive with the published MD5 is unpacked, so a hostile archive is rejected before its
headers are read.
"""

import sys
import tarfile
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import numpy as np
import torch
from torchvision.datasets import CIFAR10, CIFAR100, STL10
from torchvision.datasets.utils import check_integrity
from tqdm import tqdm

from vit_train.base.log import logger
from vit_train.base.writing import exclusive
from vit_train.config.data import ArchiveConfig, Cifar10Config, Stl10Config
from vit_train.data.dataset import Dataset, ImageSet, resize

STALL_SECONDS = 10.0
# An upper bound on the size of every archive.
MAX_BYTES = 4 * 10**9


class Archive(NamedTuple):
    """A published archive; `members` are the files to unpack from its folder `folder`."""

    title: str
    filename: str
    md5: str
    size: str  # human-readable
    folder: str
    members: dict[str, str]  # name → MD5


def obtain(archive: Archive, config: ArchiveConfig) -> Path:
    """Return the folder that holds the archive's members, each with the right MD5.

    Unpack missing or damaged members from the archive in config.root. If the archive is missing,
    too, and config.download is set, download the archive, and delete it afterwards. If another
    process is unpacking the same members, wait until it has finished. Raise ValueError if members
    are missing and there is neither the archive nor permission to download it.
    """
    root = Path(config.root)
    folder = root / archive.folder
    local = root / archive.filename
    lacking = missing(archive, root)
    if not lacking:
        return folder
    has_archive = check_integrity(local, archive.md5)
    if not (has_archive or config.download):
        raise ValueError(
            f"cannot read {archive.title} from {folder.resolve()}: {', '.join(lacking)} missing or "
            f"damaged. Choose one:\n  - data.download=true downloads the files ({archive.size})\n"
            "  - data.root=FOLDER (or, for new runs, $VIT_TRAIN_DATA) reads FOLDER, if it "
            f"holds {archive.folder}/ or {archive.filename} (MD5 {archive.md5})\n"
            "  - vit-train data=shapes draws built-in images, without a download"
        )
    root.mkdir(parents=True, exist_ok=True)
    lock = root / f".{archive.folder}.lock"
    with exclusive(lock, f"waiting for another process that is fetching {archive.title}"):
        if missing(archive, root):  # unless another process has fetched them during the wait
            if not has_archive:
                download(config.urls, local, archive.md5)
            unpack(archive, root)
            if not has_archive:
                local.unlink()
    return folder


def missing(archive: Archive, root: Path) -> list[str]:
    """Return the names of the members that are absent or damaged."""
    folder = root / archive.folder
    return [
        name for name, md5 in archive.members.items() if not check_integrity(folder / name, md5)
    ]


def unpack(archive: Archive, root: Path) -> None:
    """Unpack the archive's missing members below `root`; ignore everything else in the archive.

    Members are regular files with expected names, so links, devices and paths that lead out of
    `root` have no effect. A member that is not written completely counts as missing later.
    """
    path = root / archive.filename
    logger.info(f"unpacking {path}")
    wanted = {f"{archive.folder}/{name}" for name in missing(archive, root)}
    with tarfile.open(path, "r:gz") as tar:
        members = (each for each in tar if each.isreg() and each.name.removeprefix("./") in wanted)
        tar.extractall(root, members, filter="data")


def download(urls: list[str], target: Path, md5: str) -> None:
    """Download `target` from the first of `urls` that delivers a file with the MD5 `md5`.

    Each URL is tried twice. An incomplete download stays in `target`.part; the next try or call
    continues it. Raise ValueError if every URL fails.
    """
    part = target.with_name(f"{target.name}.part")
    failures: dict[str, str] = {}
    for url in 2 * urls:
        try:
            append_rest(url, part)
        except (OSError, HTTPException, ValueError) as error:
            failures[url] = str(error)
            if getattr(error, "code", None) != 416:  # 416: nothing is left
                continue
        if check_integrity(part, md5):
            part.replace(target)
            return
        part.unlink(missing_ok=True)
        failures[url] = f"sent a different file: its MD5 is not {md5}"
    raise ValueError(
        f"could not download {target.name} from any of the {len(urls)} mirrors in data.urls\n"
        + "".join(f"  - {url}: {failure}\n" for url, failure in failures.items())
        + f"You can also download the file yourself to {target.resolve()} (MD5 {md5}), and then "
        "run the same command again"
    )


def append_rest(url: str, part: Path) -> None:
    """Append the rest of the file at `url` to `part`, or all of it if the server cannot resume.

    Stop after MAX_BYTES. Raise OSError if the connection ends before the end of the file.
    """
    start = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "vit-train", "Range": f"bytes={start}-"}
    with (
        urlopen(Request(url, headers=headers), timeout=STALL_SECONDS) as response,
        part.open("ab" if response.status == 206 else "wb") as file,
    ):
        total = file.tell() + int(response.headers["Content-Length"] or 0)
        with tqdm(
            desc=part.stem, initial=file.tell(), total=total, unit="B", unit_scale=True,
            mininterval=0.1 if sys.stderr.isatty() else 60,
        ) as bar:  # fmt: skip
            while file.tell() <= MAX_BYTES and (chunk := response.read1(1 << 18)):
                bar.update(file.write(chunk))
        if (rest := total - file.tell()) > 0 and file.tell() <= MAX_BYTES:
            raise OSError(f"the connection ended {rest:,} bytes before the end of the file")


def unchecked(kind: type) -> Any:
    """Return a data set of torchvision that reads its files without checking them once more.

    `obtain` has checked them. The unlabeled images of STL-10 need not be there.
    """
    return type(kind.__name__, (kind,), {"_check_integrity": lambda self: True})


def load_cifar(config: Cifar10Config) -> Dataset:
    """Load CIFAR-10 or CIFAR-100; download missing files first if config.download is set."""
    kind = unchecked(CIFAR10 if config.own_classes == 10 else CIFAR100)
    archive = Archive(
        title=f"CIFAR-{config.own_classes}",
        filename=kind.filename,
        md5=kind.tgz_md5,
        size="170 MB",
        folder=kind.base_folder,
        members=dict(
            [*kind.train_list, *kind.test_list, (kind.meta["filename"], kind.meta["md5"])]
        ),
    )
    obtain(archive, config)
    parts = [kind(config.root, train=train) for train in (True, False)]
    train, test = (
        labeled_images(part.data.transpose(0, 3, 1, 2), part.targets, config) for part in parts
    )
    return Dataset(train, test, tuple(parts[0].classes))


def labeled_images(images: np.ndarray, labels: Sequence[int], config: ArchiveConfig) -> ImageSet:
    """Return images (N,3,H,W), resized as the config demands, with their labels (N,)."""
    pixels = torch.from_numpy(images).contiguous()
    return ImageSet(resize(pixels, config.image_size), torch.tensor(labels, dtype=torch.long))


TEXTS = {
    "class_names.txt": "6de44d022411c4d5cda4673b7f147c3f",
    "fold_indices.txt": "4bbf8cd098ab9f87fe03fbcb37c06b28",
}
UNLABELED = "unlabeled_X.bin"


def load_stl10(config: Stl10Config) -> Dataset:
    """Load STL-10: 5,000 training images, or the 1,000 of config.fold, and 8,000 test images.

    With config.unlabeled, also map the unlabeled images into memory.
    """
    members = TEXTS | dict([*STL10.train_list, *STL10.test_list])
    if not config.unlabeled:
        members.pop(UNLABELED)
    archive = Archive(
        title="STL-10",
        filename=STL10.filename,
        md5=STL10.tgz_md5,
        size="2.6 GB, and 0.4 GB unpacked, or 3.1 GB with data.unlabeled=true",
        folder=STL10.base_folder,
        members=members,
    )
    folder = obtain(archive, config)
    train = unchecked(STL10)(config.root, "train", config.fold)
    test = unchecked(STL10)(config.root, "test")
    unlabeled = None
    if config.unlabeled:
        # Copy-on-write, because a tensor must be writable but the file must not change.
        pixels = np.memmap(folder / UNLABELED, dtype=np.uint8, mode="c").reshape(-1, 3, 96, 96)
        # The file stores each channel column by column.
        unlabeled = resize(torch.from_numpy(pixels).transpose(2, 3), config.image_size)
    return Dataset(
        labeled_images(train.data, train.labels, config),
        labeled_images(test.data, test.labels, config),
        tuple(train.classes),
        unlabeled=unlabeled,
    )
