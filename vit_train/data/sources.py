"""The one place where each source becomes a `Dataset`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from vit_train.data import shapes
from vit_train.data.config import Cifar10Config, DataConfig, ShapesConfig
from vit_train.data.dataset import Dataset, ImageSet, channel_statistics, resize


def load_dataset(config: DataConfig) -> Dataset:
    """Read the source that the config names; ValueError says what the user can do if it cannot."""
    return SOURCES[config.name](config)


def load_cifar10(config: Cifar10Config) -> Dataset:
    """CIFAR-10 (Krizhevsky 2009) as torchvision reads it."""
    from torchvision.datasets import CIFAR10

    try:
        train, test = (
            CIFAR10(config.root, train=train, download=config.download) for train in (True, False)
        )
    except (RuntimeError, OSError) as error:
        raise ValueError(
            f"cannot read CIFAR-10 from {Path(config.root).resolve() / CIFAR10.base_folder}: "
            f"{error}\n"
            "  - data.download=true downloads it there (170 MB)\n"
            "  - data.root=FOLDER (or $VIT_TRAIN_DATA) names the folder that holds "
            f"{CIFAR10.base_folder}/ or {CIFAR10.filename}\n"
            "  - data=shapes trains on the built-in data instead"
        ) from error

    def image_set(source: CIFAR10) -> ImageSet:
        images = torch.from_numpy(source.data).permute(0, 3, 1, 2).contiguous()  # (N,3,32,32)
        return ImageSet(resize(images, config.image_size), torch.tensor(source.targets))

    # Of the 50,000 training images, as commonly quoted.
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return Dataset(image_set(train), image_set(test), tuple(train.classes), mean, std)


def load_shapes(config: ShapesConfig) -> Dataset:
    """The built-in data; test images have a seed of their own."""
    size = config.image_size or 32

    def draw(count: int, seed: int) -> ImageSet:
        return ImageSet(*shapes.draw(count, size, config.num_classes, seed))

    train = draw(config.train_images, 2 * config.draw_seed)
    test = draw(config.test_images, 2 * config.draw_seed + 1)
    mean, std = channel_statistics(train.images)
    return Dataset(train, test, shapes.CLASSES[: config.num_classes], mean, std)


SOURCES: dict[str, Callable[[Any], Dataset]] = {"cifar10": load_cifar10, "shapes": load_shapes}
