"""The table of data sources: each name with the function that loads it."""

from collections.abc import Callable
from typing import Any

from vit_train.data.cifar import load_cifar10, load_cifar100
from vit_train.data.config import DataConfig
from vit_train.data.dataset import Dataset
from vit_train.data.folder import load_folder
from vit_train.data.shapes import load_shapes
from vit_train.data.stl10 import load_stl10

SOURCES: dict[str, Callable[[Any], Dataset]] = {
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "stl10": load_stl10,
    "folder": load_folder,
    "shapes": load_shapes,
}


def load_dataset(config: DataConfig) -> Dataset:
    """Load the source that the config names.

    If that fails, raise ValueError with what the user can do.
    """
    return SOURCES[config.name](config)
