"""Published data sets: CIFAR-10, CIFAR-100 and STL-10 from a .tar.gz, and those of torchvision.

Each is downloaded once. Only an archive with the published MD5 is unpacked, so a hostile archive is
rejected before its headers are read. torchvision's own classes check the other sets.
"""

import hashlib
import pickle
import sys
import tarfile
from contextlib import nullcontext
from functools import partial
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from vit_train.base.log import logger
from vit_train.base.text import reason
from vit_train.base.writing import exclusive
from vit_train.config.data import (
    TORCHVISION_SETS,
    ArchiveConfig,
    Cifar10Config,
    Stl10Config,
    TorchvisionConfig,
)
from vit_train.config.fields import sides
from vit_train.data.dataset import CHANNELS, Dataset, ImageSet, require_images_fit, resize
from vit_train.data.decode import Reading, fit_image

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


UNLABELED = "unlabeled_X.bin"
# By the name of the source. For CIFAR, the last members are the test images and the classes.
ARCHIVES = {
    "cifar10": Archive(
        title="CIFAR-10",
        filename="cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
        size="170 MB",
        folder="cifar-10-batches-py",
        members={
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
            "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        },
    ),
    "cifar100": Archive(
        title="CIFAR-100",
        filename="cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        size="170 MB",
        folder="cifar-100-python",
        members={
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            "meta": "7973b15100ade9c7d40fb424638fde48",
        },
    ),
    "stl10": Archive(
        title="STL-10",
        filename="stl10_binary.tar.gz",
        md5="91f7769df0f17e558f3565bffb0c7dfb",
        size="2.6 GB, and 0.4 GB unpacked, or 3.1 GB with data.unlabeled=true",
        folder="stl10_binary",
        members={
            "class_names.txt": "6de44d022411c4d5cda4673b7f147c3f",
            "fold_indices.txt": "4bbf8cd098ab9f87fe03fbcb37c06b28",
            "train_X.bin": "918c2871b30a85fa023e0c44e0bee87f",
            "train_y.bin": "5a34089d4802c674881badbb80307741",
            "test_X.bin": "7f263ba9f9e0b06b93213547f721ac82",
            "test_y.bin": "36f9794fa4beb8a2c72628de14fa638e",
            UNLABELED: "5242ba1fed5e4be9e1e742405eb56ca4",
        },
    ),
}


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
    has_archive = has_md5(local, archive.md5)
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
    return [name for name, md5 in archive.members.items() if not has_md5(folder / name, md5)]


def has_md5(path: Path, md5: str) -> bool:
    """Return True if `path` is a file with this MD5."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, partial(hashlib.md5, usedforsecurity=False))
    return digest.hexdigest() == md5


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
        try:
            tar.extractall(root, members, filter="data")
        except tarfile.TarError as error:  # such as a folder that is a link to another place
            raise ValueError(f"cannot unpack {path} into {root}: {error}") from error


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
        if has_md5(part, md5):
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


def load_cifar(config: Cifar10Config) -> Dataset:
    """Load CIFAR-10 or CIFAR-100; download missing files first if config.download is set."""
    archive = ARCHIVES[config.name]
    folder = obtain(archive, config)
    # `obtain` has checked these files, so their pickles are the published ones.
    *train, test, meta = (
        pickle.loads((folder / name).read_bytes(), encoding="latin1") for name in archive.members
    )
    classes = meta["label_names" if config.own_classes == 10 else "fine_label_names"]
    return Dataset(cifar_images(train, config), cifar_images([test], config), tuple(classes))


def cifar_images(batches: list[dict[str, Any]], config: Cifar10Config) -> ImageSet:
    """Return the images of batches, resized as the config demands, with their labels."""
    key = "labels" if config.own_classes == 10 else "fine_labels"
    pixels = np.concatenate([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32)
    labels = [label for batch in batches for label in batch[key]]
    return ImageSet(resize(torch.from_numpy(pixels), config.image_size), torch.tensor(labels))


def load_stl10(config: Stl10Config) -> Dataset:
    """Load STL-10: 5,000 training images, or the 1,000 of config.fold, and 8,000 test images.

    With config.unlabeled, also map the unlabeled images into memory.
    """
    archive = ARCHIVES[config.name]
    if not config.unlabeled:
        labeled = {name: md5 for name, md5 in archive.members.items() if name != UNLABELED}
        archive = archive._replace(members=labeled)
    folder = obtain(archive, config)
    train, test = (stl10_images(folder, split, config) for split in ("train", "test"))
    if config.fold is not None:
        line = (folder / "fold_indices.txt").read_text(encoding="utf-8").splitlines()[config.fold]
        train = train.subset(torch.tensor([*map(int, line.split())]))
    return Dataset(
        train,
        test,
        tuple((folder / "class_names.txt").read_text(encoding="utf-8").split()),
        # Mapped copy-on-write, because a tensor must be writable but the file must not change.
        unlabeled=resize(stl10_pixels(np.memmap(folder / UNLABELED, mode="c")), config.image_size)
        if config.unlabeled
        else None,
    )


def stl10_images(folder: Path, split: str, config: Stl10Config) -> ImageSet:
    """Return the images of a split, resized as the config demands, with their labels."""
    pixels = stl10_pixels(np.fromfile(folder / f"{split}_X.bin", np.uint8)).contiguous()
    labels = torch.from_numpy(np.fromfile(folder / f"{split}_y.bin", np.uint8)).long()
    return ImageSet(resize(pixels, config.image_size), labels - 1)  # the files count from 1


def stl10_pixels(content: np.ndarray) -> Tensor:
    """Return the images (N,3,96,96) of a file's bytes, which hold each channel column by column."""
    return torch.from_numpy(content).view(-1, 3, 96, 96).transpose(2, 3)


def load_torchvision(config: TorchvisionConfig) -> Dataset:
    """Load the data set config.set; download missing files first if config.download is set.

    Raise ValueError if files are missing, damaged or cannot be downloaded, or if torchvision needs
    another package to read them.
    """
    try:
        sources = {name: opened_split(config, name) for name in TORCHVISION_SETS[config.set]}
        parts = {name: decoded(source, config) for name, source in sources.items()}
    except (RuntimeError, OSError, ImportError) as error:
        advice = "" if config.download else "; data.download=true downloads missing files"
        raise ValueError(
            f"cannot read {config.set} from data.root={config.root} ({reason(error)}){advice}"
        ) from error
    named = getattr(sources["train"], "classes", range(1 + int(parts["train"].labels.max())))
    # Imagenette's classes have several names each.
    classes = tuple(each[0] if isinstance(each, tuple) else str(each) for each in named)
    return Dataset(parts["train"], parts["test"], classes, parts.get("val"))


def opened_split(config: TorchvisionConfig, name: str) -> Any:
    """Return a split as torchvision's data set of PIL images with labels.

    If another process is downloading the set, wait until it has finished.
    """
    lock = Path(config.root, f".{config.set}.lock")
    waiting = f"waiting for another process that is fetching {config.set}"
    if config.download:
        lock.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(lock, waiting) if config.download else nullcontext():
        make = getattr(import_module("torchvision.datasets"), config.set)  # slow to import
        return make(config.root, download=config.download, **TORCHVISION_SETS[config.set][name])


def decoded(source: Any, config: TorchvisionConfig) -> ImageSet:
    """Return the images of a split, stretched to config.image_size, with their labels."""
    size = sides(config.value("image_size"))
    require_images_fit(len(source), size, f"data.image_size={config.image_size}")
    images = torch.empty(len(source), CHANNELS, *size, dtype=torch.uint8)
    labels = torch.empty(len(source), dtype=torch.long)
    for index in tqdm(range(len(source)), desc=config.set, unit="image", leave=False, disable=None):
        image, labels[index] = source[index]
        images[index] = torch.from_numpy(fit_image(image, Reading(size))[0])
    return ImageSet(images, labels)
