"""The source `folder`: a tree of image files with one folder per class."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from vit_train.base.memory import SPLIT_BYTES, require_images_fit
from vit_train.base.text import printable
from vit_train.data.config import FolderConfig
from vit_train.data.dataset import Dataset, ImageSet, set_apart
from vit_train.data.image_files import (
    MUCH,
    NAMED_AT_MOST,
    WRONG_FORMAT,
    Doubts,
    are_flat,
    by_suffix,
    listed,
    visible,
    walk,
    warn_of_passed_over,
)
from vit_train.data.images import SUFFIXES, Decoded, decode, decode_cached

logger = logging.getLogger(__name__)

# The folders of a root, and what each holds; of several for one part, the last one counts.
PARTS = {"train": "train", "test": "test", "valid": "val", "validation": "val", "val": "val"}


@dataclass(frozen=True)
class Tree:
    """One part of the data on disk: its image files, sorted, each with its class name."""

    root: Path
    classes: list[str]
    files: list[tuple[Path, str]]
    other_files: list[Path]


def load_folder(config: FolderConfig) -> Dataset:
    """Load root/train with root/test or root/val, or split one tree of classes by the seed.

    With both test/ and val/, validation uses val/. Raise ValueError for a tree without images, a
    class that the training set lacks, a part of which no file can be decoded and, unless
    config.on_error is skip, for an empty class or any file that cannot be decoded.
    """
    root = Path(config.root)
    trees = find_parts(root)
    classes = class_names(trees, config)
    require_fit(sum(len(tree.files) for tree in trees.values()), config)
    label_of = {name: label for label, name in enumerate(classes)}
    sets = {part: image_set(tree, label_of, config) for part, tree in trees.items()}
    for label, name in enumerate(classes):
        if not (sets["train"].labels == label).any():
            raise ValueError(f"class {printable(name)} has no training image that can be read")
    # Out of the table, so that a set is not held beside its parts.
    train, test, val = sets.pop("train"), sets.pop("test", None), sets.pop("val", None)
    if test is None and val is not None:
        test, val = val, None
    if test is None:
        train, test = split_off_test(train, config)
    return Dataset(train, test, tuple(printable(name) for name in classes), val=val)


def load_part(
    config: FolderConfig, split: str, classes: Sequence[str], whole: bool
) -> ImageSet | None:
    """Return test or validation images that have a folder of their own, without the others.

    With `whole`, a root that holds folders of classes alone is the test set. None means that the
    split has no folder of its own. `classes` are the names of all classes. Raise ValueError for a
    folder that is not one of them, and as `load_folder` does.
    """
    trees = find_parts(Path(config.root))
    if len(trees) == 1:
        tree = trees["train"] if whole and split == "test" else None
    elif split == "test":
        tree = trees.get("test", trees.get("val"))
    else:
        tree = trees.get("val") if split == "val" and "test" in trees else None
    if tree is None:
        return None
    names = sorted({name for _, name in tree.files})
    unknown = [printable(name) for name in names if printable(name) not in classes]
    if unknown:
        raise ValueError(
            f"{tree.root} has classes that the model does not know: "
            f"{', '.join(unknown[:NAMED_AT_MOST])}"
        )
    require_fit(len(tree.files), config)
    label_of = {name: list(classes).index(printable(name)) for name in names}
    return image_set(tree, label_of, config)


def reread(images: ImageSet, config: FolderConfig) -> ImageSet:
    """Return images of config.root, read at another size, at its image size.

    Raise ValueError if one can no longer be read.
    """
    paths = [Path(config.root, name) for name in images.all_names]
    require_fit(len(paths), config)
    decoded = decode_all(paths, config)
    for index, problem in decoded.broken.items():
        raise ValueError(f"{paths[index]} can no longer be read: {problem}")
    return replace(images, images=decoded.images)


def require_fit(count: int, config: FolderConfig) -> None:
    """Raise ValueError if so many images do not fit into memory."""
    assert config.image_size is not None
    settings = f"data.image_size={config.image_size}"
    require_images_fit(count, config.image_size, settings, SPLIT_BYTES)


def decode_all(paths: Sequence[Path], config: FolderConfig) -> Decoded:
    assert config.image_size is not None
    how = decode_cached if config.cache else decode
    return how(paths, config.image_size, config.max_pixels)


def split_off_test(images: ImageSet, config: FolderConfig) -> tuple[ImageSet, ImageSet]:
    """Return the images left for training and those for testing, where there is only one tree."""
    remedy = "put them into train/CLASS/, and others into test/CLASS/"
    return set_apart(images, "test_fraction", config, "testing", remedy)


def find_parts(root: Path) -> dict[str, Tree]:
    """Return the trees train, test and val; without class folders in train/, the root is train.

    Raise ValueError for images of all classes together in train/, beside others for testing.
    """
    if not root.is_dir():
        raise ValueError(f"data.root={root} is not a folder")
    places = {part: place for place, part in PARTS.items() if (root / place).is_dir()}
    inside = visible(root / "train")
    if not any(child.is_dir() for child in inside):
        if len(places) > 1 and any(child.suffix.lower() in SUFFIXES for child in inside):
            raise ValueError(
                f"{root / 'train'} holds images, but no folders of classes: put them into "
                "train/CLASS/, into a single folder if they have no classes"
            )
        for place in places.values():
            if any(map(Path.is_dir, visible(root / place))):
                raise ValueError(
                    f"{root / place} has folders of classes, but {root / 'train'} has none: put "
                    "the images to train on into train/CLASS/ (to evaluate these: "
                    f"data.root={root / place})"
                )
        return {"train": scan(root)}
    known = {root / place for place in places.values()}
    others = [child for child in visible(root) if child.is_dir() and child not in known]
    if others:
        logger.warning(f"folders that are not read, beside train/:{listed(others)}")
    return {part: scan(root / place) for part, place in places.items()}


def class_folders(root: Path) -> list[str]:
    """Return the classes of a root that is itself the tree, without looking into their folders."""
    if any(child.is_dir() for child in visible(root / "train")):
        return []
    return [printable(child.name) for child in visible(root) if child.is_dir()]


def scan(root: Path) -> Tree:
    children = visible(root)
    classes = [child for child in children if child.is_dir()]
    files, others = [], [child for child in children if not child.is_dir()]
    for folder in classes:
        for path in walk(folder):
            if path.suffix.lower() in SUFFIXES:
                files.append((path, folder.name))
            else:
                others.append(path)
    return Tree(root, [folder.name for folder in classes], files, others)


def class_names(trees: dict[str, Tree], config: FolderConfig) -> list[str]:
    """Return the training tree's classes.

    Raise ValueError if there is none, if one is empty (with on_error=skip it is left out), or if
    another tree has further classes.
    """
    tree = trees["train"]
    counts = Counter(name for _, name in tree.files)
    empty = [name for name in tree.classes if not counts[name]]
    if not counts:
        raise ValueError(
            f"{tree.root} has no folder of images: put JPEG, PNG, WebP or BMP files into "
            f"{tree.root / 'CLASS'}/, one folder per class"
        )
    if len(counts) == 1:
        logger.warning(
            f"all images are of one class, {printable(*counts)}: it has the only folder in "
            f"{tree.root} that holds any"
        )
    folders = listed([tree.root / name for name in empty])
    if empty and config.on_error == "stop":
        raise ValueError(
            f"no images in:{folders}\n"
            "Remove the folder, or set data.on_error=skip to leave the class out"
        )
    if empty:
        logger.warning(f"classes left out because they have no images:{folders}")
    for part in trees.values():
        unknown = sorted({name for _, name in part.files} - counts.keys())
        if unknown:
            raise ValueError(
                f"{part.root} has classes that {tree.root} does not have: "
                f"{', '.join(map(printable, unknown))}"
            )
    return sorted(counts)


def image_set(tree: Tree, label_of: dict[str, int], config: FolderConfig) -> ImageSet:
    loose, others = by_suffix(tree.other_files)
    warn_of_passed_over(loose, "in no class's folder")
    warn_of_passed_over(others, WRONG_FORMAT)
    if not tree.files:
        raise ValueError(f"{tree.root} has no images in folders named after the classes")
    paths = [path for path, _ in tree.files]
    decoded = decode_all(paths, config)
    if decoded.broken:
        report = listed([paths[index] for index in decoded.broken], list(decoded.broken.values()))
        if config.on_error == "stop":
            raise ValueError(
                f"{len(decoded.broken)} of {len(paths)} image files cannot be used:{report}\n"
                "Repair or remove them, or set data.on_error=skip to go on without them"
            )
        if len(decoded.broken) == len(paths):
            raise ValueError(f"none of the image files in {tree.root} can be used:{report}")
        logger.warning(f"{len(decoded.broken)} of {len(paths)} image files are left out:{report}")
    warn_of_doubts(paths, decoded)
    labels = torch.tensor([label_of[name] for _, name in tree.files])
    top = Path(config.root)
    names = np.array([path.relative_to(top).as_posix() for path in paths], dtype=object)
    whole = ImageSet(decoded.images, labels, names=names)
    if not decoded.broken:
        return whole
    kept = torch.ones(len(paths), dtype=torch.bool)
    kept[list(decoded.broken)] = False
    return whole.subset(kept.nonzero().squeeze(1))


def warn_of_doubts(paths: list[Path], decoded: Decoded) -> None:
    """Warn of images that can be read, but hardly seen."""
    doubts = Doubts()
    for index in (are_flat(decoded.images) | (decoded.lost > MUCH)).nonzero().flatten().tolist():
        if index not in decoded.broken:
            doubts.note(paths[index], decoded.images[index], decoded.lost[index].item())
    doubts.warn()
