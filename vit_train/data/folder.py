"""The sources `folder` and `table`: image files in one folder per class, or listed in a table."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vit_train.base.log import logger
from vit_train.base.memory import require_images_fit
from vit_train.base.setting import sides
from vit_train.data.config import FolderConfig
from vit_train.data.dataset import Dataset, ImageSet
from vit_train.data.decode import (
    THREADS,
    Decoded,
    Doubts,
    Reading,
    common_white_level,
    decode,
    decode_cached,
)
from vit_train.data.image_files import WRONG_FORMAT, bulleted, by_suffix, warn_of
from vit_train.data.splits import hold_out
from vit_train.data.trees import Tree, class_names, find_trees, name_of, require_known


def load_folder(config: FolderConfig) -> Dataset:
    """Load the images of a folder, or of a table (`find_trees`).

    Without test images, validation images are used for testing. Without either,
    config.test_fraction of the training images are used for testing. Raise ValueError
    if a split has no images, if the test or validation images include a class without training
    images, or if no file of a split can be decoded. With on_error=stop, also raise ValueError if
    any file cannot be decoded.
    """
    trees, broken = find_trees(config), dict[str, str]()
    if "train" not in trees:
        raise ValueError(
            f"{config.title} lists no training images: set the column split to train for some rows"
        )
    classes = class_names(trees)
    level = config.white_level or common_white_level(
        [file.path for file in trees["train"].files], config.max_pixels
    )
    if level != config.white_level:
        logger.info(f"images of more than 8 bits: {level:,} becomes white (data.white_level)")
    config, found = replace(config, white_level=level), {"white_level": level}
    sets = {part: image_set(tree, classes, config, broken) for part, tree in trees.items()}
    # Popped from the dict, so that the whole set is not kept in memory beside its splits.
    train, test, val = sets.pop("train"), sets.pop("test", None), sets.pop("val", None)
    if test is None:
        train, test = hold_out(train, "test_fraction", config)
    return Dataset(train, test, tuple(classes), val=val, settings=found, broken=broken)


def load_part(config: FolderConfig, split: str, classes: Sequence[str] | None) -> ImageSet | None:
    """Load the images of `split`; return None for train, and for a split without files.

    If config.root has neither a test nor a validation folder, all its images are test images.
    `classes` are the model's classes, or None if it has none; raise ValueError for images of any
    other class. Also raise ValueError in the cases that `load_folder` names.
    """
    config = replace(config, split_as=None)
    try:
        trees = find_trees(config)
    except ValueError:  # these images may have no groups, which testing does not need
        trees = find_trees(replace(config, group_by=None))
    if len(trees) == 1:
        trees = {"test": next(iter(trees.values()))}
    tree = trees.get(split)
    if tree is None or split == "train":
        return None
    if classes is None:
        classes = class_names({"train": tree})
    require_known(tree, classes, "the model")
    return image_set(tree, classes, config, {})


def reread(images: ImageSet, config: FolderConfig) -> ImageSet:
    """Read these images again from config.root, resized to config.image_size.

    Raise ValueError if an image can no longer be read.
    """
    paths = [Path(config.root, name) for name in images.all_names]
    decoded = decode_all(paths, config)
    for index, problem in decoded.broken.items():
        raise ValueError(f"{paths[index]} can no longer be read: {problem}")
    return replace(images, images=decoded.images)


def decode_all(paths: Sequence[Path], config: FolderConfig) -> Decoded:
    """Decode the files or load them from the cache; raise ValueError if memory is too small."""
    size = sides(config.image_size)
    reading = Reading(size, config.fit, config.white_level, config.max_pixels)
    field = f"data.image_size={config.image_size}"
    require_images_fit(min(len(paths), THREADS), size, field)  # decoded at once
    if config.cache and (decoded := decode_cached(paths, reading)):
        return decoded
    require_images_fit(
        len(paths),
        size,
        field,
        advice="choose fewer or smaller images"
        if config.cache
        else "set data.cache=true, or choose fewer or smaller images",
    )
    return decode(paths, reading)


def image_set(
    tree: Tree, classes: Sequence[str], config: FolderConfig, left_out: dict[str, str]
) -> ImageSet:
    """Decode the images of a tree, and warn about faults; raise ValueError as `load_folder` does.

    Add the names of the files that cannot be decoded to `left_out`, each with the reason.
    """
    loose, others = by_suffix(tree.other_files)
    warn_of(loose, "file", "skipped (not in a class folder)")
    warn_of(others, "file", WRONG_FORMAT)
    if not tree.files:
        raise ValueError(
            f"{tree.root} has no images: put them into {tree.root / 'CLASS'}/, one folder per class"
        )
    paths, labels = [file.path for file in tree.files], label_tensor(tree, classes)
    weights = [file.weight for file in tree.files]
    images, broken, lost = decode_all(paths, config)
    names = np.array([name_of(path, config) for path in paths], dtype=object)
    found = ImageSet(
        images,
        labels,
        names=names,
        groups=tree.groups,
        weights=None if None in weights else torch.tensor(weights),
    )
    if broken:
        reasons = [f"{paths[index]}: {why}" for index, why in broken.items()]
        report = f"{len(broken)} of {len(paths)} image files cannot be decoded:{bulleted(reasons)}"
        if config.on_error == "stop" or len(broken) == len(paths):
            raise ValueError(
                f"{report}\nRepair or remove these files"
                + (" (paths in a table are relative to data.root)" if tree.root.is_file() else "")
                + (", or set data.on_error=skip" if len(broken) < len(paths) else "")
            )
        logger.warning(report)
        left_out |= {name_of(paths[index], config): why for index, why in broken.items()}
        kept = [index for index in range(len(paths)) if index not in broken]
        paths, lost, found = [paths[i] for i in kept], lost[kept], found.subset(torch.tensor(kept))
    doubts = Doubts()
    doubts.note(paths, found.images, lost.tolist())
    doubts.warn()
    return found


def label_tensor(tree: Tree, classes: Sequence[str]) -> Tensor:
    """Return the labels of a tree's files: int64 (N,) or, for tags, float32 (N,K); see ImageSet."""
    label_of = {name: label for label, name in enumerate(classes)}
    if not tree.has_tags:
        return torch.tensor([label_of[file.label] for file in tree.files])
    labels = torch.zeros(len(tree.files), len(classes))
    for row, tags in zip(labels, tree.labels, strict=True):
        row[[label_of[tag] for tag in tags]] = 1
    return labels
