"""Image files by their names: those of a command, and those of each split in folders."""

import glob
import os
import re
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vit_train.base.log import logger
from vit_train.base.text import counted, listed, plain_cell, printable
from vit_train.config.data import FolderConfig
from vit_train.data.splits import SPLITS, split_of

# The formats that are read, as Pillow names them, and their suffixes.
IMAGE_FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "AVIF", "JPEG2000", "PPM")
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"),
    *(".avif", ".jp2", ".ppm", ".pgm"),
)
NAMED_FORMATS = "JPEG, PNG, WebP, BMP, TIFF, GIF, AVIF, JPEG 2000, PPM or PGM"
NAMED_AT_MOST = 10


def image_files(images: Any) -> list[Path]:
    """Return the image files that the setting `images` names; raise ValueError if there are none.

    `images` is a file, a folder, a pattern or a list of these. For "-", standard input lists the
    file names, one per line.
    """
    names = images if isinstance(images, list) else [images]
    if names == ["-"]:
        lines = sys.stdin.buffer.read().splitlines() if sys.stdin else []
        found = [Path(os.fsdecode(line)) for line in lines if line]  # names need not be UTF-8
    else:
        found = [path for name in names for path in files_at(str(name))]
    if not found:
        raise ValueError(f"images={images} names no file: name image files, folders or patterns")
    return found


def files_at(name: str, key: str = "images") -> Sequence[Path]:
    """Return the file `name`, the images below the folder `name`, or the matches of a pattern.

    Warn about other files in the folder. Raise ValueError if no file is found; `key` is the setting
    that has the value `name`.
    """
    path = Path(os.path.expanduser(name))  # Path's own method fails for ~photo.jpg
    if path.is_dir():
        found, others = by_suffix(walk(path))
        skip(others)
    elif path.exists():
        found = [path]
    else:
        matches = map(Path, sorted(glob.glob(str(path), recursive=True)))
        found = [match for match in matches if not match.is_dir()]
    if not found:
        raise ValueError(
            f"{key}={name}: there is no such file or folder, or the folder contains no image "
            f"({', '.join(SUFFIXES)})"
        )
    return found


def by_suffix(files: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the files that have an image suffix, and the files that do not."""
    named = [path for path in files if path.suffix.lower() in SUFFIXES]
    return named, [path for path in files if path.suffix.lower() not in SUFFIXES]


def entries(folder: Path) -> list[list[Path]]:
    """Return the folders in a folder and its files, sorted and without hidden ones.

    If the folder does not exist, return two empty lists.
    """
    _, *kinds = next(os.walk(folder), ("", [], []))
    return [[folder / name for name in sorted(filter(is_visible, kind))] for kind in kinds]


def subfolders(folder: Path) -> list[Path]:
    return entries(folder)[0]


def images_in(folder: Path) -> list[Path]:
    """Return the images that lie directly in a folder."""
    return by_suffix(entries(folder)[1])[0]


def is_visible(name: str) -> bool:
    """Return False for hidden files, and for the folder that macOS adds to archives."""
    return not name.startswith((".", "__MACOSX"))


def walk(folder: Path) -> list[Path]:
    """Return all files in a folder and its subfolders, sorted, without hidden ones.

    Warn about links to folders, which are not followed, and about unreadable folders.
    """
    files = []
    links = []
    for parent, folders, names in os.walk(
        folder,
        onerror=lambda error: logger.warning(
            f"skipped the unreadable folder {error.filename}: {error.strerror}"
        ),
    ):
        folders[:] = filter(is_visible, folders)
        links += [path for name in folders if (path := Path(parent) / name).is_symlink()]
        files += [Path(parent) / name for name in filter(is_visible, names)]
    if links:
        logger.warning(f"ignored links to folders:{bulleted(sorted(links))}")
    return sorted(files)


def bulleted(lines: Sequence[object]) -> str:
    """Return the first NAMED_AT_MOST lines as a bulleted list, and the number of lines left out."""
    more = len(lines) - NAMED_AT_MOST
    named = "".join(f"\n  - {printable(str(line))}" for line in lines[:NAMED_AT_MOST])
    return named + (f"\n  and {more} more" if more > 0 else "")


def warn_of(paths: Sequence[Path], noun: str, fault: str) -> None:
    """Log the warning "3 NOUNs FAULT, such as PATH", unless `paths` is empty."""
    if paths:
        logger.warning(f"{counted(len(paths), noun)} {fault}, such as {printable(str(paths[0]))}")


def skip(files: Sequence[Path]) -> dict[Path, str]:
    """Return the reason why each file is not read as an image; log a warning for each reason."""
    images, others = by_suffix(files)
    has_heic = any(path.suffix.lower() in (".heic", ".heif") for path in others)
    advice = "; convert HEIC photos to JPEG" if has_heic else ""
    reasons = (
        (images, "not in a class folder"),
        (others, f"no {NAMED_FORMATS} suffix{advice}"),
    )
    for paths, why in reasons:
        warn_of(paths, "file", f"skipped ({why})")
    return {path: why for paths, why in reasons for path in paths}


class ImageFile(NamedTuple):
    """An image file: its class and, if there are any, its group and its weight in the loss.

    `decision` is its row of data.decisions, if it has one.
    """

    path: Path
    label: str
    group: str | None = None
    weight: float | None = None
    decision: dict[str, str] | None = None

    @property
    def is_left_out(self) -> bool:
        return self.decision is not None and self.decision["what"] == "leave out"

    @property
    def unit(self) -> object:
        """Return what may not be split: the group or, without groups, the file itself."""
        return self.path if self.group is None else self.group


@dataclass(frozen=True)
class SplitFiles:
    """The files of one split, below `root` or listed in the table `root`.

    `files` are its image files, and `other_files` the files that are not read. With `has_tags`, the
    label of a file is its tags, separated by "|".
    """

    root: Path
    files: list[ImageFile]
    other_files: list[Path]
    has_tags: bool = False

    @property
    def labels(self) -> list[list[str]]:
        """Return the class or the tags of each file."""
        if not self.has_tags:
            return [[file.label] for file in self.files]
        cells = [map(str.strip, file.label.split("|")) for file in self.files]
        return [list(filter(None, cell)) for cell in cells]

    @property
    def groups(self) -> np.ndarray | None:
        """Return the group of each file, objects (N,), or None if the files have no groups."""
        groups = [file.group for file in self.files]
        return None if None in groups else np.array(groups, dtype=object)


# The files of each split, by its name.
Trees = dict[str, SplitFiles]


def by_split(tree: SplitFiles, parts: Sequence[str]) -> Trees:
    """Divide files into splits; `parts` has the split of each file."""
    found: dict[str, list[ImageFile]] = {}
    for file, part in zip(tree.files, parts, strict=True):
        found.setdefault(part, []).append(file)
    return {part: replace(tree, files=files) for part, files in found.items()}


def name_of(path: Path, config: FolderConfig) -> str:
    """Return an image's name: its path below config.root, or its whole path if it is elsewhere."""
    below = path.is_relative_to(config.root)
    return (path.relative_to(config.root) if below else path).as_posix()


def listed_name(path: Path, config: FolderConfig) -> str:
    """Return an image's name as a run lists it in IMAGES."""
    return str(plain_cell(printable(name_of(path, config)))).lstrip()


def class_name(text: str) -> str:
    """Return the name of a class: printable, with letters such as "é" in one form (Unicode NFC)."""
    return printable(unicodedata.normalize("NFC", text))


# What to do if the names of classes look like those of splits.
IF_CLASSES = "If every folder in data.root= is a class, set data.layout=classes"


def folder_trees(config: FolderConfig) -> Trees:
    """Return the trees of the folders in config.root that have usual names of splits.

    Without such folders, or if they have no class folders, the root is the training tree, as with
    config.layout=classes. A folder that only wraps the data, as in unpacked archives, is passed
    through. Raise ValueError if the root is not a folder, if its folders could be both splits and
    classes, or if the classes are in label files.
    """
    root = Path(config.root)
    if not root.is_dir():
        raise ValueError(
            f"data.root={root} is not a folder: name the folder that holds your images"
        )
    if config.layout == "classes":
        return {"train": scan(root, config)}
    root = without_wrapper(root)
    if root != Path(config.root):
        logger.info(f"reading the folders in {root}")
    splits = split_folders(root)
    train = splits.get("train", root / "train")
    if any(
        (each / "images").is_dir() and any(each.glob("labels/**/*.txt")) for each in (root, train)
    ):
        raise ValueError(
            f"the classes of images in {root} are in label files: set data=table data.file=FILE "
            "without data.root=, where FILE lists the names of the classes, such as data.yaml"
        )
    if not subfolders(train):
        require_class_folders(root, train, splits)
        return {"train": scan(root, config)}
    if others := [each for each in subfolders(root) if each not in splits.values()]:
        logger.warning(f"ignored folders next to {train.name}/:{bulleted(others)}\n{IF_CLASSES}")
    # An archive unpacked into a folder of its name gives, for example, seg_train/seg_train/CLASS.
    inner = {part: folder / folder.name for part, folder in splits.items()}
    return {
        part: scan(inner[part] if subfolders(folder) == [inner[part]] else folder, config)
        for part, folder in splits.items()
    }


def without_wrapper(folder: Path) -> Path:
    """Return the folder or, if all that it holds is a folder of folders, that one, without it."""
    inner = subfolders(folder)
    is_wrapper = len(inner) == 1 and not images_in(folder) and not images_in(inner[0])
    return without_wrapper(inner[0]) if is_wrapper and subfolders(inner[0]) else folder


def split_folders(root: Path) -> dict[str, Path]:
    """Return the folders in `root` that hold splits, by split.

    Longer names, such as seg_train and seg_test, count only for folders of folders, and only if
    there is another split. Raise ValueError if two folders seem to hold the same split.
    """
    folders = subfolders(root)
    parents = [folder for folder in folders if subfolders(folder)]
    named = {
        part: [each for each in folders if split_of(each.name) == part]
        or [each for each in parents if split_of(each.name, within=True) == part]
        for part in dict.fromkeys(SPLITS.values())
    }
    found = {part: each for part, each in named.items() if each}
    if not any(split_of(each.name) for each in folders) and not {"train"} < found.keys():
        return {}
    for first, *others in found.values():
        if others:
            raise ValueError(
                f"{first} and {others[0]} could hold the same split: move one elsewhere. "
                f"{IF_CLASSES}"
            )
    return {part: first for part, (first,) in found.items()}


def require_class_folders(root: Path, train: Path, splits: Mapping[str, Path]) -> None:
    """Raise ValueError unless the folders in `root` can be classes.

    They cannot be classes if one of the `splits` has folders, if there are several splits and
    images in `train`, if a folder holds splits, or if no folder holds images but all hold the same
    folders.
    """
    folders = subfolders(root)
    if any(map(subfolders, splits.values())) or (len(splits) > 1 and images_in(train)):
        raise ValueError(
            f"{train} has no class folders: put the training images into train/CLASS/, with a "
            "single CLASS for images without classes. If a table lists the classes, set data=table "
            "data.file=TABLE. To evaluate images in another folder, set data.root= to that folder. "
            f"{IF_CLASSES}"
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
    for folder in splits.values():
        logger.warning(f"{folder} is read as a class, because it has no folders. {IF_CLASSES}")


def scan(root: Path, config: FolderConfig) -> SplitFiles:
    """Return the files of the class folders in `root`.

    If there are no class folders, all images in `root` belong to a class named after `root`. Raise
    ValueError if config.group_by does not match the name of an image file.
    """
    folders, loose = entries(root)
    others = loose if folders else []
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
    if not found or not found[0]:
        raise ValueError(
            f"data.group_by={pattern} matches no part of {name}: change it to match every file"
        )
    return found[0]


def folded(name: str) -> str:
    """Return a name in lower case, without spaces, hyphens and underscores."""
    return re.sub(r"[\s_-]", "", name).casefold()
