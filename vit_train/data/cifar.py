"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), read by torchvision's classes."""

import torch
from torchvision.datasets import CIFAR10, CIFAR100

from vit_train.data.archive import Archive, obtain
from vit_train.data.config import ArchiveConfig
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
