"""The image files of a split and their classes, from folders; nothing is decoded here."""

import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vit_train.base.log import logger
from vit_train.base.text import listed, plain_cell, printable
from vit_train.config.data import FolderConfig
from vit_train.data.image_files import (
    NAMED_AT_MOST,
    NAMED_FORMATS,
    bulleted,
    by_suffix,
    is_visible,
    visible,
    walk,
)
from vit_train.data.splits import SPLITS, split_of


class ImageFile(NamedTuple):
    """An image file: its class and, if there are any, its group and its weight in the loss."""

    path: Path
    label: str
    group: str | None = None
    weight: float | None = None

    @property
    def unit(self) -> object:
        """Return what may not be split: the group or, without groups, the file itself."""
        return self.path if self.group is None else self.group


@dataclass(frozen=True)
class SplitFiles:
    """The files of one split, below `root` or listed in the table `root`.

    `files` are its image files, `other_files` those that are not read. With `has_tags`, the class
    of a file is its tags, separated by "|".
    """

    root: Path
    files: list[ImageFile]
    other_files: list[Path]
    has_tags: bool = False

    @property
    def labels(self) -> list[list[str]]:
        """Return the class or the tags of each file."""
        return [
            [tag for part in file.label.split("|") if (tag := part.strip())]
            if self.has_tags
            else [file.label]
            for file in self.files
        ]

    @property
    def groups(self) -> np.ndarray | None:
        """Return the group of each file, objects (N,), or None if the files have no groups."""
        groups = [file.group for file in self.files]
        return None if None in groups else np.array(groups, dtype=object)


def by_split(tree: SplitFiles, parts: Sequence[str]) -> dict[str, SplitFiles]:
    """Divide files, given the split of each of them."""
    return {
        part: replace(
            tree,
            files=[file for file, each in zip(tree.files, parts, strict=True) if each == part],
        )
        for part in dict.fromkeys(parts)
    }


def name_of(path: Path, config: FolderConfig) -> str:
    """Return an image's name: its path below config.root, or its whole path if it is elsewhere."""
    below = path.is_relative_to(config.root)
    return (path.relative_to(config.root) if below else path).as_posix()


def listed_name(path: Path, config: FolderConfig) -> str:
    """Return an image's name as a run lists it in IMAGES."""
    return str(plain_cell(printable(name_of(path, config))))


def class_name(text: str) -> str:
    """Return the name of a class: printable, and accents as in "é" in one way (Unicode's NFC)."""
    return printable(unicodedata.normalize("NFC", text))


# What to do if the names of classes look like those of splits.
IF_CLASSES = "If every folder in data.root= is a class, set data.layout=classes"


def folder_trees(config: FolderConfig) -> dict[str, SplitFiles]:
    """Return the trees of the folders in config.root that have usual names of splits.

    Without such folders, or if they have no class folders, the root is the training tree, as with
    config.layout=classes. Raise ValueError if the root is not a folder, or if its folders could be
    both splits and classes.
    """
    root = Path(config.root)
    if not root.is_dir():
        raise ValueError(
            f"data.root={root} is not a folder: name the folder that holds your images"
        )
    if config.layout == "classes":
        return {"train": scan(root, config)}
    places = split_folders(root)
    train = places.get("train", root / "train")
    if not subfolders(train):
        require_class_folders(root, places)
        return {"train": scan(root, config)}
    if others := [each for each in subfolders(root) if each not in places.values()]:
        logger.warning(f"ignored folders next to {train.name}/:{bulleted(others)}\n{IF_CLASSES}")
    return {part: scan(place, config) for part, place in places.items()}


def subfolders(folder: Path) -> list[Path]:
    """Return the sorted folders in a folder, without hidden ones; [] if it does not exist."""
    names = next(os.walk(folder), ("", [], []))[1]
    return [folder / name for name in sorted(names) if is_visible(name)]


def split_folders(root: Path) -> dict[str, Path]:
    """Return the folders in `root` that hold splits, by split.

    Longer names, such as seg_train and seg_test, count only for folders of folders, and only if
    there is another split. Raise ValueError if two folders seem to hold the same split.
    """
    folders = subfolders(root)
    parents = [folder for folder in folders if subfolders(folder)]
    places = {
        part: [each for each in folders if split_of(each.name) == part]
        or [each for each in parents if split_of(each.name, within=True) == part]
        for part in dict.fromkeys(SPLITS.values())
    }
    found = {part: each for part, each in places.items() if each}
    if not any(split_of(each.name) for each in folders) and not {"train"} < found.keys():
        return {}
    for first, *others in found.values():
        if others:
            raise ValueError(
                f"{first} and {others[0]} could hold the same split: move one elsewhere. "
                f"{IF_CLASSES}"
            )
    return dict(zip(found, chain(*found.values()), strict=True))


def require_class_folders(root: Path, places: Mapping[str, Path]) -> None:
    """Raise ValueError unless the folders in `root` can be classes.

    They cannot if one of the `places` of splits has folders, or if there are several of them and
    images for training; if they hold splits; or if they hold no images, but all the same folders.
    """
    folders = subfolders(root)
    train = places.get("train", root / "train")
    if any(map(subfolders, places.values())) or (len(places) > 1 and images_in(train)):
        raise ValueError(
            f"{train} has no class folders: put the training images into train/CLASS/, with a "
            "single CLASS for images without classes. To evaluate images in another folder, set "
            f"data.root= to that folder. {IF_CLASSES}"
        )
    for inner in folders:
        if len(split_folders(inner)) > 1:
            raise ValueError(
                f"{inner} holds splits: set data.root={inner}, or turn CLASS/train/ into "
                f"train/CLASS/. {IF_CLASSES}"
            )
    inside = [[each.name for each in subfolders(folder)] for folder in folders]
    is_same = len(folders) > 1 and inside.count(inside[0]) == len(folders)
    if is_same and len(inside[0]) > 1 and not any(map(images_in, folders)):
        raise ValueError(
            f"the folders {listed([folder.name for folder in folders])} of {root} hold no images, "
            f"but each has the same folders: {listed(inside[0])}. If they are splits, call them "
            f"train, val or test. {IF_CLASSES}"
        )


def images_in(folder: Path) -> list[Path]:
    """Return the images that lie directly in a folder."""
    return by_suffix(visible(folder))[0]


def scan(root: Path, config: FolderConfig) -> SplitFiles:
    """Return the files of the class folders in `root`.

    If there are no class folders, all images in `root` belong to a class named after `root`. Raise
    ValueError if config.group_by does not match the name of an image file.
    """
    folders = subfolders(root)
    others = [child for child in visible(root) if folders and not child.is_dir()]
    files = []
    for folder in folders or [root]:
        label = class_name(folder.resolve().name if folder == root else folder.name)
        images, rest = by_suffix(walk(folder))
        files += [ImageFile(path, label, group_of(path, config)) for path in images]
        others += rest
    return SplitFiles(root, files, others)


def group_of(path: Path, config: FolderConfig) -> str | None:
    """Return the part of a file's name that matches data.group_by, or None if that is not set.

    Raise ValueError if no part matches, or if the pattern is not a regular expression.
    """
    name = name_of(path, config)
    pattern = config.group_by
    if pattern is None:
        return None
    try:
        found = re.search(pattern, name)
    except re.error as error:
        raise ValueError(f"data.group_by={pattern} is not a regular expression: {error}") from None
    if found is None:
        raise ValueError(
            f"data.group_by={pattern} matches no part of {name}: change it to match every file"
        )
    return found[0]


def class_names(trees: dict[str, SplitFiles]) -> list[str]:
    """Return the sorted names of the classes that have training images.

    Warn about class folders without images, and about names that are almost the same. Raise
    ValueError if there are no training images, or if the test or validation images include other
    classes.
    """
    tree = trees["train"]
    names = sorted(set(chain(*tree.labels)))
    if not names:
        raise ValueError(
            f"{tree.root} has no tags for training images: fill in the column tags"
            if tree.has_tags
            else f"{tree.root} has no folders with images: put {NAMED_FORMATS} files into "
            f"{tree.root / 'CLASS'}/, one folder per class"
        )
    if pairs := alike(names):
        logger.warning(pairs)
    folders = subfolders(tree.root)
    if len(folders) == 1 and subfolders(folders[0]):
        logger.warning(
            f"all images are of one class, {folders[0].name}: if the folders in {folders[0]} are "
            f"the classes, set data.root={folders[0]}"
        )
    if empty := [folder for folder in folders if class_name(folder.name) not in names]:
        logger.warning(f"classes left out because they have no images:{bulleted(empty)}")
    for part in trees.values():
        require_known_classes(part, names, "the training images")
    return names


def alike(names: Iterable[str]) -> str:
    """Return a hint to names that differ only in case, spaces, hyphens or underscores, or ""."""
    groups = [list(group) for _, group in groupby(sorted(names, key=folded), folded)]
    same = [" and ".join(map(repr, group)) for group in groups if len(group) > 1]
    return (
        f"almost the same names; if they mean one class, use one:{bulleted(same)}" if same else ""
    )


def folded(name: str) -> str:
    """Return a name in lower case, without spaces, hyphens and underscores."""
    return re.sub(r"[\s_-]", "", name).casefold()


def require_known_classes(tree: SplitFiles, classes: Sequence[str], owner: str) -> None:
    """Raise ValueError if the tree has images of a class that is not in `classes`.

    The message calls `classes` those of `owner`, such as "the model".
    """
    unknown = sorted(set(chain(*tree.labels)) - set(classes))
    if unknown:
        kind = "tags" if tree.has_tags else "classes"
        named = ", ".join(unknown[:NAMED_AT_MOST])
        raise ValueError(
            f"{tree.root} has {kind} that are not {kind} of {owner}: {named}. Remove or rename "
            "them (images without class folders get the name of their folder as class)\n"
            f"{alike([*classes, *unknown])}".strip()
        )
