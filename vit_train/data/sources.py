"""The loader of each data source, by settings class; to add a source, add its loader here."""

from collections.abc import Callable

from vit_train.base.setting import registered
from vit_train.data.config import Cifar10Config, DataConfig, FolderConfig, ShapesConfig, Stl10Config
from vit_train.data.dataset import Dataset
from vit_train.data.folder import load_folder
from vit_train.data.published import load_cifar, load_stl10
from vit_train.data.shapes import load_shapes

LOADERS: dict[type, Callable[..., Dataset]] = {
    Cifar10Config: load_cifar,
    Stl10Config: load_stl10,
    FolderConfig: load_folder,
    ShapesConfig: load_shapes,
}


def load_dataset(config: DataConfig) -> Dataset:
    """Load the data set that the config selects; raise ValueError if it cannot be loaded."""
    return registered(LOADERS, config)(config)
