"""Data sets of torchvision, whose own classes download them, check them and know their splits."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torchvision.datasets
from tqdm import tqdm

from vit_train.base.text import reason
from vit_train.base.writing import exclusive
from vit_train.config.data import TORCHVISION_SETS, TorchvisionConfig
from vit_train.config.fields import sides
from vit_train.data.dataset import CHANNELS, Dataset, ImageSet, require_images_fit
from vit_train.data.decode import Reading, fit_image


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
        make = getattr(torchvision.datasets, config.set)
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
