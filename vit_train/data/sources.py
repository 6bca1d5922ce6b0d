"""The loader of each data source, by settings class; to add a source, add its loader here."""

from collections.abc import Callable

from vit_train.base.setting import registered
from vit_train.data.config import (
    Cifar10Config,
    DataConfig,
    FolderConfig,
    ShapesConfig,
    Stl10Config,
)
from vit_train.data.dataset import Dataset
from vit_train.data.shapes import load_shapes


def load_published(config: Cifar10Config | Stl10Config) -> Dataset:
    """Load CIFAR-10, CIFAR-100 or STL-10; the code that reads them is imported only here."""
    from vit_train.data.published import load_cifar, load_stl10

    return load_stl10(config) if isinstance(config, Stl10Config) else load_cifar(config)


def load_files(config: FolderConfig) -> Dataset:
    """Load image files; the code that reads them is imported only here."""
    from vit_train.data.folder import load_folder

    return load_folder(config)


LOADERS: dict[type, Callable[..., Dataset]] = {
    Cifar10Config: load_published,
    Stl10Config: load_published,
    FolderConfig: load_files,
    ShapesConfig: load_shapes,
}


def load_dataset(config: DataConfig) -> Dataset:
    """Load the data set that the config selects; raise ValueError if it cannot be loaded."""
    return registered(LOADERS, config)(config)
