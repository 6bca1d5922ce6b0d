"""The sources `folder` and `table`: image files in one folder per class, or listed in a table."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from itertools import chain, groupby
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vit_train.base.log import logger
from vit_train.config.data import IMAGES, LEFT_OUT_OF, FolderConfig, TableConfig
from vit_train.config.fields import sides
from vit_train.data.columns import table_rows
from vit_train.data.dataset import Dataset, ImageSet, require_images_fit
from vit_train.data.decisions import (
    relabeled,
    report_decisions,
    warn_of_undone,
    with_decisions,
)
from vit_train.data.decode import (
    THREADS,
    Decoded,
    Reading,
    common_white_level,
    decode,
    decode_cached,
)
from vit_train.data.files import (
    NAMED_AT_MOST,
    NAMED_FORMATS,
    SplitFiles,
    Trees,
    bulleted,
    by_split,
    class_name,
    folded,
    folder_trees,
    listed_name,
    name_of,
    skip,
    subfolders,
)
from vit_train.data.splits import hold_out
from vit_train.data.tables import table_trees


def load_folder(config: FolderConfig) -> Dataset:
    """Load the images of a folder, or of a table (`find_trees`).

    Without test images, the validation images are used for testing. Without both,
    config.test_fraction of the training images are used for testing. Raise ValueError if a split
    has no images, if the test or validation images include a class without training images, or if
    no file of a split can be decoded. With on_error=stop, also raise ValueError if any file cannot
    be decoded.
    """
    config = config.settled()
    trees = find_trees(config)
    if "train" not in trees:
        raise ValueError(
            f"{config.title} lists no training images: set the column split to train for some rows"
        )
    classes = class_names(trees)
    if config.decisions is not None:
        report_decisions(trees, config.decisions, config.root)
    elif config.split_as is not None:
        warn_of_undone(config.split_as)
    # With data.split_as, all splits are of one tree, and name the same files.
    skipped = skip(
        list(dict.fromkeys(path for tree in trees.values() for path in tree.other_files))
    )
    level = config.white_level or common_white_level(
        [file.path for file in trees["train"].files if not file.is_left_out], config.max_pixels
    )
    if level != config.white_level:
        logger.info(
            f"gray images of more than 8 bits: {level:,} is shown as white (data.white_level)"
        )
    config = replace(config, white_level=level)
    broken: dict[str, str] = {}
    sets = {part: image_set(tree, classes, config, broken) for part, tree in trees.items()}
    if "test" not in sets:
        sets["train"], sets["test"] = hold_out(sets["train"], "test_fraction", config)
    return Dataset(
        sets["train"],
        sets["test"],
        tuple(classes),
        val=sets.get("val"),
        settings={"white_level": level},
        broken=broken,
        skipped={name_of(path, config): reason for path, reason in skipped.items()},
    )


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
    require_known_classes(tree, classes, "the model", "" if tree.has_tags else NAMED_LAST)
    skip(tree.other_files)
    return image_set(tree, classes, config, {})


def find_trees(config: FolderConfig) -> Trees:
    """Return the files of the training, test and validation images.

    Raise ValueError if images of one group are in two splits.
    """
    trees = table_trees(config) if isinstance(config, TableConfig) else folder_trees(config)
    if "test" not in trees and "val" in trees:
        trees["test"] = trees.pop("val")
    if config.split_as is not None:
        trees = divided_as_before(trees, config)
    if config.decisions is not None:
        trees = with_decisions(trees, config.decisions, config)
    part_of: dict[str, str] = {}
    for part, tree in trees.items():
        for group in {file.group for file in tree.files if file.group is not None}:
            if part_of.setdefault(group, part) != part:
                raise ValueError(
                    f"the images of group {group} are in both {part_of[group]} and {part}: a "
                    "group (data.group_by) must be in one split"
                )
    return trees


def divided_as_before(trees: Trees, config: FolderConfig) -> Trees:
    """Put the files of a folder into the splits of an earlier run; divide new files separately.

    A new file of a group that the run knows goes to the split of this group. Raise ValueError if
    the files are already divided into splits.
    """
    tree, *others = trees.values()
    if others:
        raise ValueError(
            "data.split_as= is for images that are not yet divided into splits, but these are: "
            "set data.split_as=null"
        )
    table = Path(str(config.split_as), IMAGES)
    if not table.is_file():
        raise ValueError(
            f"data.split_as={config.split_as} must be the folder of a run on such images: there is "
            f"no {table}"
        )
    rows = {
        row["path"]: row.get("split", "").removeprefix(LEFT_OUT_OF)
        for _, row in table_rows(TableConfig(file=str(table)))
    }
    parts = [rows.get(listed_name(file.path, config)) for file in tree.files]
    part_of = {file.unit: part for file, part in zip(tree.files, parts, strict=True) if part}
    if not part_of:
        raise ValueError(f"{table} lists none of these images: set data.split_as=null")
    new = [file for file in tree.files if file.unit not in part_of]
    part_of |= divided(replace(tree, files=new), config)
    every = [part or part_of[file.unit] for file, part in zip(tree.files, parts, strict=True)]
    return by_split(tree, every)


def divided(tree: SplitFiles, config: FolderConfig) -> dict[object, str]:
    """Divide files at random; return the split of each unit. A single unit goes to training."""
    part_of: dict[object, str] = {file.unit: "train" for file in tree.files}
    labels = np.unique([file.label for file in tree.files], return_inverse=True)[1]
    # The numbers of the files take the place of images.
    rest = ImageSet(torch.arange(len(labels)), torch.from_numpy(labels), groups=tree.groups)
    for part in ("test", "val") if config.val == "split" else ("test",):
        fraction = f"{part}_fraction"
        if len(rest.units()[0]) > 1 and round(len(rest) * getattr(config, fraction)):
            rest, held_out = hold_out(rest, fraction, config)
            part_of |= {tree.files[number].unit: part for number in held_out.images.tolist()}
    return part_of


def reread(images: ImageSet, config: FolderConfig) -> ImageSet:
    """Read these images again from config.root, as config tells.

    Raise ValueError if an image can no longer be read.
    """
    paths = [Path(config.root, name) for name in images.all_names]
    decoded, broken = decode_all(paths, config)
    for index, problem in broken.items():
        raise ValueError(f"{paths[index]} can no longer be read: {problem}")
    return replace(images, images=decoded)


def decode_all(paths: Sequence[Path], config: FolderConfig, unused: Container[int] = ()) -> Decoded:
    """Decode the files or load them from the cache; raise ValueError if memory is too small.

    If files of a table are missing, other than those at the indices `unused`, and on_error=stop,
    decode none.
    """
    missing = {
        index: "there is no such file"
        for index, path in enumerate(paths)
        if isinstance(config, TableConfig) and index not in unused and not path.exists()
    }
    if missing and (config.on_error == "stop" or len(missing) == len(paths)):
        return torch.empty(0), missing
    size = sides(config.image_size)
    field = f"data.image_size={config.image_size}"
    require_images_fit(min(len(paths), THREADS), size, field)  # decoded at once
    reading = Reading(size, config.fit, config.white_level, config.max_pixels)
    if config.cache and (decoded := decode_cached(paths, reading)):
        return decoded
    require_images_fit(len(paths), size, field)
    return decode(paths, reading)


def image_set(
    tree: SplitFiles, classes: Sequence[str], config: FolderConfig, left_out: dict[str, str]
) -> ImageSet:
    """Decode the images of a split; raise ValueError as `load_folder` does.

    Add the names of the files that cannot be decoded to `left_out`, each with the reason. Those
    that data.decisions leaves out are no faults.
    """
    if not tree.files:
        raise ValueError(
            f"{tree.root} has no images: put them into {tree.root / 'CLASS'}/, one folder per class"
        )
    paths = [file.path for file in tree.files]
    weights = [file.weight for file in tree.files]
    unused = {index for index, file in enumerate(tree.files) if file.is_left_out}
    images, broken = decode_all(paths, config, unused)
    decided = None
    if config.decisions:
        decided = label_tensor(relabeled(tree, classes), classes)
        decided[list(unused)] = -1
    found = ImageSet(
        images,
        label_tensor(tree, classes),
        names=np.array([name_of(path, config) for path in paths], dtype=object),
        groups=tree.groups,
        weights=None if None in weights else torch.tensor(weights),
        decided=decided,
    )
    used = [index for index in range(len(paths)) if index not in broken]
    faults = [index for index in broken if index not in unused or not used]
    listing = [f"{paths[index]}: {broken[index]}" for index in faults]
    report = f"{len(faults):,} of {len(paths):,} image files cannot be decoded:{bulleted(listing)}"
    if faults and (config.on_error == "stop" or not used):
        raise ValueError(
            f"{report}\nRepair or remove these files, or set data.on_error=skip to use the others "
            f"(paths in a table are relative to data.root, now {config.root})"
        )
    if faults:
        logger.warning(report)
    left_out |= {name_of(paths[index], config): broken[index] for index in faults}
    return found.subset(torch.tensor(used)) if broken else found


def class_names(trees: Trees) -> list[str]:
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
    groups = (list(group) for _, group in groupby(sorted(names, key=folded), folded))
    same = [" and ".join(map(repr, group)) for group in groups if len(group) > 1]
    hint = f"almost the same names; if they mean one class, use one:{bulleted(same)}"
    return hint if same else ""


NAMED_LAST = (
    ", or compare models, and name one that knows these classes last: vit-eval 'ckpt=[A,B]'"
)


def require_known_classes(
    tree: SplitFiles, classes: Sequence[str], owner: str, advice: str = ""
) -> None:
    """Raise ValueError if the tree has images of a class that is not in `classes`.

    The message calls `classes` those of `owner`, such as "the model", and ends with `advice`.
    """
    unknown = sorted(set(chain(*tree.labels)) - set(classes))
    if unknown:
        kind = "tags" if tree.has_tags else "classes"
        named = ", ".join(unknown[:NAMED_AT_MOST])
        raise ValueError(
            f"{tree.root} has {kind} that are not {kind} of {owner}: {named}. Remove or rename "
            f"them (images without class folders get the name of their folder as class){advice}\n"
            f"{alike([*classes, *unknown])}".strip()
        )


def label_tensor(tree: SplitFiles, classes: Sequence[str]) -> Tensor:
    """Return the labels of files: int64 (N,) or, for tags, float32 (N,K); see ImageSet."""
    label_of = {name: label for label, name in enumerate(classes)}
    numbers = [[label_of[name] for name in names] for names in tree.labels]
    if not tree.has_tags:
        return torch.tensor(numbers).flatten()
    labels = torch.zeros(len(tree.files), len(classes))
    for row, tags in zip(labels, numbers, strict=True):
        row[tags] = 1
    return labels
