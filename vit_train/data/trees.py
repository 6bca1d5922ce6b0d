"""Which image files belong to which split and class: from folders, or from a table.

Nothing is decoded here.
"""

import csv
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from vit_train.base.log import logger
from vit_train.base.reading import open_regular
from vit_train.base.text import plain_cell, printable
from vit_train.data.config import IMAGES, FolderConfig, TableConfig
from vit_train.data.dataset import ImageSet
from vit_train.data.image_files import (
    NAMED_AT_MOST,
    NAMED_FORMATS,
    bulleted,
    by_suffix,
    visible,
    walk,
)
from vit_train.data.splits import hold_out

# The split names of folders; if several folders give the same split, the last one counts.
PARTS = {"train": "train", "test": "test", "valid": "val", "validation": "val", "val": "val"}


class ImageFile(NamedTuple):
    """An image file: its class and, if there are any, its group and its weight in the loss."""

    path: Path
    label: str
    group: str | None = None
    weight: float | None = None


@dataclass(frozen=True)
class Tree:
    """The files of one split: its classes, image files with their classes, and other files.

    With `has_tags`, the class of a file is its tags, separated by "|".
    """

    root: Path
    classes: list[str]
    files: list[ImageFile]
    other_files: list[Path] = field(default_factory=list)
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


def find_trees(config: FolderConfig) -> dict[str, Tree]:
    """Return the trees of the training, test and validation images.

    Raise ValueError if there are none, or if images of one group are in two splits.
    """
    trees = table_trees(config) if isinstance(config, TableConfig) else folder_trees(config)
    if "test" not in trees and "val" in trees:
        trees["test"] = trees.pop("val")
    if config.split_as is not None:
        trees = divided_as_before(trees, config)
    part_of: dict[str, str] = {}
    for part, tree in trees.items():
        for group in {file.group for file in tree.files} - {None}:
            if part_of.setdefault(str(group), part) != part:
                raise ValueError(
                    f"the images of group {group} are in both {part_of[str(group)]} and {part}: a "
                    "group (data.group_by) must be in one split"
                )
    return trees


def divided_as_before(trees: dict[str, Tree], config: FolderConfig) -> dict[str, Tree]:
    """Put the files of a tree into the splits of an earlier run; divide the new files separately.

    New files of a group that the run has join this group. A single new file or group goes to
    training. Raise ValueError if the files are already divided into splits.
    """
    tree, *others = trees.values()
    if others:
        raise ValueError(
            "data.split_as= is for images that are not yet divided into splits, but these are: "
            "set data.split_as=null"
        )
    listed = Path(str(config.split_as), IMAGES)
    if not listed.is_file():
        raise ValueError(
            f"data.split_as={config.split_as} must be the folder of a run on such images: there is "
            f"no {listed}"
        )
    before = {row["path"]: row.get("split") for _, row in table_rows(TableConfig(file=str(listed)))}
    classes = np.unique([file.label for file in tree.files], return_inverse=True)[1]
    # The numbers of the files take the place of images.
    files = ImageSet(torch.arange(len(classes)), torch.from_numpy(classes), groups=tree.groups)
    unit_of = files.units()[1].tolist()  # each file's group or, without groups, the file itself
    part_of: dict[int, str] = {}  # by unit
    for unit, file in zip(unit_of, tree.files, strict=True):
        # The name as images.csv has it.
        part = before.get(str(plain_cell(printable(name_of(file.path, config)))))
        if part and part_of.setdefault(unit, part) != part:
            raise ValueError(
                f"{listed} has images of group {file.group} in two splits: set data.split_as=null"
            )
    if not part_of:
        raise ValueError(f"{listed} lists none of these images: set data.split_as=null")
    new = [number for number, unit in enumerate(unit_of) if unit not in part_of]
    rest = files.subset(torch.tensor(new, dtype=torch.int64))
    for part, fraction in {"test": "test_fraction", "val": "val_fraction"}.items():
        count = round(len(rest) * getattr(config, fraction)) if len(rest.units()[0]) > 1 else 0
        if count and (part == "test" or config.val == "split"):
            rest, apart = hold_out(rest, fraction, config)
            part_of |= {unit_of[number]: part for number in apart.images.tolist()}
    return {
        part: replace(
            tree,
            other_files=tree.other_files if part == "train" else [],
            files=[
                file
                for file, unit in zip(tree.files, unit_of, strict=True)
                if part_of.get(unit, "train") == part
            ],
        )
        for part in dict.fromkeys(("train", *part_of.values()))
    }


def name_of(path: Path, config: FolderConfig) -> str:
    """Return an image's name: its path below config.root, or its whole path if it is elsewhere."""
    below = path.is_relative_to(config.root)
    return (path.relative_to(config.root) if below else path).as_posix()


def table_trees(config: TableConfig) -> dict[str, Tree]:
    """Return the trees that the rows of a CSV file describe, by their split.

    Raise ValueError if the file cannot be read, lacks a column, or has an incomplete row.
    """
    trees: dict[str, Tree] = {}
    for number, row in table_rows(config):
        part = PARTS.get(row.get("split") or "train")
        tags, label = row.get("tags"), row.get("label", "").strip()
        if part is None or not row["path"] or (tags is None and not label):
            raise ValueError(
                f"{config.file}, line {number}: each row needs a path, a label and, if there is a "
                f"column split, one of: {', '.join(PARTS)}"
            )
        tree = trees.setdefault(part, Tree(Path(config.file), [], [], [], tags is not None))
        group = row.get(config.group_by) if config.group_by else None
        weight = row.get("weight")
        tree.files.append(
            ImageFile(
                Path(config.root, row["path"].replace("\\", "/")),
                printable(label if tags is None else tags),
                # An image without a group is a group of its own.
                None if group is None else group.strip() or row["path"],
                None if weight is None else weight_in(weight, f"{config.file}, line {number}"),
            )
        )
    if not trees:
        raise ValueError(f"{config.file} lists no images")
    return trees


def weight_in(text: str, place: str) -> float:
    """Return the weight in a cell, 1 if the cell is empty.

    Raise ValueError, with the `place` of the cell, unless it is a number from 0 to a million.
    """
    try:
        weight = float(text or 1)
    except ValueError:
        weight = math.nan
    if not 0 <= weight <= 1e6:
        raise ValueError(
            f"{place}: weight {text} must be a number from 0 to 1,000,000, such as 0.3 (empty: 1)"
        )
    return weight


def table_rows(config: TableConfig) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number of each line of the table with its cells by column; see `table_trees`."""
    try:
        with (
            open_regular(path := Path(config.file)),
            path.open(encoding="utf-8-sig", newline="") as file,
        ):
            header = file.readline()
            file.seek(0)
            # Spreadsheets of many countries separate cells by semicolons.
            separator = max(",;\t", key=header.count)
            rows = csv.DictReader(file, delimiter=separator, restval="", restkey="surplus cells")
            names = rows.fieldnames or ()
            for column in ("path", "tags" if "tags" in names else "label"):
                if column not in names:
                    raise ValueError(
                        f"{config.file} has no column {column}: the first line must name the "
                        "columns path and label (or tags) and, optionally, split, group and weight"
                    )
            if config.group_by not in (None, TableConfig.group_by, *names):
                raise ValueError(f"{config.file} has no column {config.group_by} (data.group_by)")
            for row in rows:
                yield rows.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"data.file={config.file} cannot be read as a CSV file: {error}") from None


def folder_trees(config: FolderConfig) -> dict[str, Tree]:
    """Return the trees of the folders train, test and val in config.root.

    If train/ has no class folders, the root itself is the training tree. If there is val/ but no
    test/, val/ is the test tree. Raise ValueError if the root is not a folder. Without class
    folders in train/, also raise ValueError in two cases: test/ or val/ has class folders, or
    train/ has images and there is a folder test/ or val/.
    """
    root = Path(config.root)
    if not root.is_dir():
        raise ValueError(
            f"data.root={root} is not a folder: name the folder that holds your images"
        )
    folders = {each.name.lower(): each for each in visible(root) if each.is_dir()}
    places = {part: folders[place] for place, part in PARTS.items() if place in folders}
    inside = visible(folders.get("train", root / "train"))
    if not any(map(Path.is_dir, inside)):
        nested = any(child.is_dir() for place in places.values() for child in visible(place))
        if nested or (len(places) > 1 and by_suffix(inside)[0]):
            raise ValueError(
                f"{root / 'train'} has no class folders: put the training images into "
                "train/CLASS/, with a single CLASS for images without classes. To evaluate images "
                "in another folder, set data.root= to that folder"
            )
        return {"train": scan(root, config)}
    if others := [each for each in visible(root) if each.is_dir() and each not in places.values()]:
        logger.warning(f"ignored folders next to train/:{bulleted(others)}")
    return {part: scan(place, config) for part, place in places.items()}


def scan(root: Path, config: FolderConfig) -> Tree:
    """Return the tree of the class folders in `root`.

    If there are no class folders, all images in `root` belong to a class named after `root`. Raise
    ValueError if config.group_by does not match the name of an image file.
    """
    folders = [child for child in visible(root) if child.is_dir()]
    others = [child for child in visible(root) if not child.is_dir()]
    files = []
    for folder in folders:
        images, rest = by_suffix(walk(folder))
        files += [
            ImageFile(path, printable(folder.name), group_of(path, config)) for path in images
        ]
        others += rest
    if not folders:
        images, others = by_suffix(others)
        label = printable(root.resolve().name)
        files = [ImageFile(path, label, group_of(path, config)) for path in images]
    return Tree(root, [printable(folder.name) for folder in folders], files, others)


def group_of(path: Path, config: FolderConfig) -> str | None:
    """Return the part of a file's name that matches data.group_by, or None if that is not set.

    Raise ValueError if no part matches, or if the pattern is not a regular expression.
    """
    name, pattern = name_of(path, config), config.group_by
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


def class_names(trees: dict[str, Tree]) -> list[str]:
    """Return the sorted names of the classes that have training images.

    Warn about class folders without images. Raise ValueError if there are no training images, or if
    the test or validation images include other classes.
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
    if empty := [tree.root / name for name in tree.classes if name not in names]:
        logger.warning(f"classes left out because they have no images:{bulleted(empty)}")
    for part in trees.values():
        require_known(part, names, "the training images")
    return names


def require_known(tree: Tree, classes: Sequence[str], owner: str) -> None:
    """Raise ValueError if the tree has images of a class that is not in `classes`.

    The message calls `classes` those of `owner`, such as "the model".
    """
    unknown = sorted(set(chain(*tree.labels)) - set(classes))
    if unknown:
        kind = "tags" if tree.has_tags else "classes"
        raise ValueError(
            f"{tree.root} has {kind} that are not {kind} of {owner}: "
            f"{', '.join(unknown[:NAMED_AT_MOST])}. Remove or rename them"
            + (
                " (images without class folders get the name of their folder as class)"
                if tree.root.is_dir()
                else ""
            )
        )
