"""Published data sets: CIFAR-10, CIFAR-100 and STL-10."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchvision.datasets import CIFAR10, CIFAR100

from vit_train.data.archive import Archive, obtain
from vit_train.data.config import ArchiveConfig, Stl10Config
from vit_train.data.dataset import Dataset, ImageSet, resize

KINDS: dict[str, tuple[str, type[CIFAR10]]] = {
    "cifar10": ("CIFAR-10", CIFAR10),
    "cifar100": ("CIFAR-100", CIFAR100),
}


def load_cifar(config: ArchiveConfig) -> Dataset:
    """Load the data set that config.name says, downloading it first if config.download is set."""
    title, kind = KINDS[config.name]
    meta = (kind.meta["filename"], kind.meta["md5"])
    archive = Archive(
        title=title,
        filename=kind.filename,
        md5=kind.tgz_md5,
        size="170 MB",
        folder=kind.base_folder,
        members=dict([*kind.train_list, *kind.test_list, meta]),
        max_bytes=10**9,
    )
    obtain(archive, config)

    def image_set(source: CIFAR10) -> ImageSet:
        images = torch.from_numpy(source.data).permute(0, 3, 1, 2).contiguous()  # (N,3,32,32)
        return ImageSet(resize(images, config.image_size), torch.tensor(source.targets))

    train, test = (kind(config.root, train=train) for train in (True, False))
    return Dataset(image_set(train), image_set(test), tuple(train.classes))


SIZE = Stl10Config.own_size
ARCHIVE_MD5 = "91f7769df0f17e558f3565bffb0c7dfb"
LABELLED = {
    "train_X.bin": "918c2871b30a85fa023e0c44e0bee87f",
    "train_y.bin": "5a34089d4802c674881badbb80307741",
    "test_X.bin": "7f263ba9f9e0b06b93213547f721ac82",
    "test_y.bin": "36f9794fa4beb8a2c72628de14fa638e",
    "class_names.txt": "6de44d022411c4d5cda4673b7f147c3f",
    "fold_indices.txt": "4bbf8cd098ab9f87fe03fbcb37c06b28",
}
UNLABELLED = {"unlabeled_X.bin": "5242ba1fed5e4be9e1e742405eb56ca4"}


def load_stl10(config: Stl10Config) -> Dataset:
    """Load 5,000 training images, or one fold's 1,000, and 8,000 test images.

    With config.unlabelled also map the unlabeled images.
    """
    archive = Archive(
        title="STL-10",
        filename="stl10_binary.tar.gz",
        md5=ARCHIVE_MD5,
        size="2.6 GB, and 0.4 GB unpacked, or 3.1 GB with data.unlabelled=true",
        folder="stl10_binary",
        members=LABELLED | (UNLABELLED if config.unlabelled else {}),
        max_bytes=4 * 10**9,
    )
    folder = obtain(archive, config)
    train = read_part(folder, "train", config.image_size)
    if config.fold is not None:
        train = train.subset(fold_indices(folder, config.fold))
    return Dataset(
        train=train,
        test=read_part(folder, "test", config.image_size),
        classes=tuple((folder / "class_names.txt").read_text(encoding="utf-8").split()),
        unlabelled=resize(map_images(folder / "unlabeled_X.bin"), config.image_size)
        if config.unlabelled
        else None,
    )


def read_part(folder: Path, part: str, image_size: int | None) -> ImageSet:
    images = map_images(folder / f"{part}_X.bin").contiguous()
    labels = np.fromfile(folder / f"{part}_y.bin", dtype=np.uint8).astype(np.int64) - 1
    return ImageSet(resize(images, image_size), torch.from_numpy(labels))


def map_images(path: Path) -> Tensor:
    """Map a file as uint8 (N,3,96,96), which stays on disk until it is read.

    The file stores each channel column by column.
    """
    # Copy-on-write: a tensor must be writable, and the file must stay as it is.
    pixels = np.memmap(path, dtype=np.uint8, mode="c").reshape(-1, 3, SIZE, SIZE)
    return torch.from_numpy(pixels).transpose(2, 3)


def fold_indices(folder: Path, fold: int) -> Tensor:
    """Return the training images of one official fold: a line of 1,000 indices."""
    line = (folder / "fold_indices.txt").read_text(encoding="utf-8").splitlines()[fold]
    return torch.tensor([int(index) for index in line.split()])
