"""The source `folder`: a tree of image files, with one folder per class."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vit_train.base.log import logger
from vit_train.base.memory import SPLIT_BYTES, require_images_fit
from vit_train.base.text import printable
from vit_train.data.config import FolderConfig
from vit_train.data.dataset import Dataset, ImageSet, set_apart
from vit_train.data.image_files import (
    NAMED_AT_MOST,
    NAMED_FORMATS,
    WRONG_FORMAT,
    Decoded,
    Doubts,
    Reading,
    by_suffix,
    common_white_level,
    decode,
    decode_cached,
    listed,
    visible,
    walk,
    warn_of,
)

# The split names of folders; if several folders give the same split, the last one counts.
PARTS = {"train": "train", "test": "test", "valid": "val", "validation": "val", "val": "val"}


@dataclass(frozen=True)
class Tree:
    """The folder of one split: its classes, image files with their classes, and other files."""

    root: Path
    classes: list[str]
    files: list[tuple[Path, str]]
    other_files: list[Path]


def load_folder(config: FolderConfig) -> Dataset:
    """Load the images in config.root, which holds one folder per split or one folder per class.

    Folders of splits are train/, test/ and val/. Without test/, val/ is used for testing. Without
    either, config.test_fraction of the training images are used for testing. Raise ValueError
    if a split has no images, if the test or validation images include a class without training
    images, or if no file of a split can be decoded. With on_error=stop, also raise ValueError if
    any file cannot be decoded.
    """
    trees = find_parts(Path(config.root))
    classes = class_names(trees)
    found: dict[str, Any] = {"white_level": found_white_level(config, trees["train"])}
    config = replace(config, **found)
    sets = {part: image_set(tree, classes, config) for part, tree in trees.items()}
    # Indexed from the table, so that the whole set is not kept in memory beside its splits.
    train, test, val = sets.pop("train"), sets.pop("test", None), sets.pop("val", None)
    if test is None:
        train, test = set_apart(train, "test_fraction", config)
    return Dataset(train, test, tuple(classes), val=val, settings=found)


def found_white_level(config: FolderConfig, train: Tree) -> int | None:
    """Return data.white_level; if it is null, that of the training images, or None."""
    if config.white_level is not None:
        return config.white_level
    level = common_white_level([path for path, _ in train.files], config.max_pixels)
    if level is not None:
        logger.info(f"images of more than 8 bits: {level:,} becomes white (data.white_level)")
    return level


def load_part(config: FolderConfig, split: str, classes: Sequence[str]) -> ImageSet | None:
    """Load the images of `split`, test or val; return None if the split has no folder.

    If config.root has neither a test nor a validation folder, all its images are test images.
    `classes` are the model's classes; raise ValueError for images of any other class. Also raise
    ValueError in the cases that `load_folder` names.
    """
    trees = find_parts(Path(config.root))
    if len(trees) == 1:
        trees = {"test": trees["train"]}
    tree = trees.get(split)
    if tree is None or split == "train":
        return None
    require_known(tree, classes, "the model")
    return image_set(tree, classes, config)


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
    size = config.image_size
    require_images_fit(len(paths), size, f"data.image_size={size}", SPLIT_BYTES)
    reading = Reading(size, config.fit, config.white_level, config.max_pixels)
    return (decode_cached if config.cache else decode)(paths, reading)


def find_parts(root: Path) -> dict[str, Tree]:
    """Return the trees of the training, test and validation images in `root`.

    If train/ has no class folders, the root itself is the training tree. If there is val/ but no
    test/, val/ is the test tree. Raise ValueError if `root` is not a folder. Without class
    folders in train/, also raise ValueError in two cases: test/ or val/ has class folders, or
    train/ has images and there is a folder test/ or val/.
    """
    if not root.is_dir():
        raise ValueError(
            f"data.root={root} is not a folder: name the folder that holds your images"
        )
    places = {part: root / place for place, part in PARTS.items() if (root / place).is_dir()}
    inside = visible(root / "train")
    if not any(map(Path.is_dir, inside)):
        nested = any(child.is_dir() for place in places.values() for child in visible(place))
        if nested or (len(places) > 1 and by_suffix(inside)[0]):
            raise ValueError(
                f"{root / 'train'} has no class folders: put the training images into "
                "train/CLASS/, with a single CLASS for images without classes. To evaluate images "
                "in another folder, set data.root= to that folder"
            )
        return {"train": scan(root)}
    others = [each for each in visible(root) if each.is_dir() and each not in places.values()]
    if others:
        logger.warning(f"ignored folders next to train/:{listed(others)}")
    if "test" not in places and "val" in places:
        places["test"] = places.pop("val")
    return {part: scan(place) for part, place in places.items()}


def scan(root: Path) -> Tree:
    folders = [child for child in visible(root) if child.is_dir()]
    others = [child for child in visible(root) if not child.is_dir()]
    files = []
    for folder in folders:
        images, rest = by_suffix(walk(folder))
        files += [(path, printable(folder.name)) for path in images]
        others += rest
    return Tree(root, [printable(folder.name) for folder in folders], files, others)


def class_names(trees: dict[str, Tree]) -> list[str]:
    """Return the sorted names of the classes that have training images.

    Warn about class folders without images. Raise ValueError if there are no training images, or if
    the test or validation images include other classes.
    """
    tree = trees["train"]
    names = sorted({name for _, name in tree.files})
    if not names:
        raise ValueError(
            f"{tree.root} has no folders with images: put {NAMED_FORMATS} files into "
            f"{tree.root / 'CLASS'}/, one folder per class"
        )
    if empty := [tree.root / name for name in tree.classes if name not in names]:
        logger.warning(f"classes left out because they have no images:{listed(empty)}")
    for part in trees.values():
        require_known(part, names, str(tree.root))
    return names


def require_known(tree: Tree, classes: Sequence[str], owner: str) -> None:
    """Raise ValueError if the tree has images of a class that is not in `classes`.

    The message says that `owner`, the model or the training folder, does not have these classes.
    """
    unknown = sorted({name for _, name in tree.files} - set(classes))
    if unknown:
        raise ValueError(
            f"{tree.root} has classes that {owner} does not have: "
            f"{', '.join(unknown[:NAMED_AT_MOST])}. Remove or rename their folders"
        )


def image_set(tree: Tree, classes: Sequence[str], config: FolderConfig) -> ImageSet:
    loose, others = by_suffix(tree.other_files)
    warn_of(loose, "file", "skipped (not in a class folder)")
    warn_of(others, "file", WRONG_FORMAT)
    if not tree.files:
        raise ValueError(
            f"{tree.root} has no images: put them into {tree.root / 'CLASS'}/, one folder per class"
        )
    files, paths = tree.files, [path for path, _ in tree.files]
    images, broken, lost = decode_all(paths, config)
    if broken:
        reasons = [f"{paths[index]}: {why}" for index, why in broken.items()]
        report = f"{len(broken)} of {len(paths)} image files cannot be decoded:{listed(reasons)}"
        if config.on_error == "stop" or len(broken) == len(paths):
            raise ValueError(
                f"{report}\n"
                "Repair or remove these files, or set data.on_error=skip to leave them out"
            )
        logger.warning(report)
        kept = [index for index in range(len(paths)) if index not in broken]
        files, images, lost = [files[index] for index in kept], images[kept], lost[kept]
    doubts = Doubts()
    doubts.note([path for path, _ in files], images, lost.tolist())
    doubts.warn()
    label_of = {name: label for label, name in enumerate(classes)}
    names = np.array([path.relative_to(config.root).as_posix() for path, _ in files], dtype=object)
    return ImageSet(images, torch.tensor([label_of[name] for _, name in files]), names=names)
