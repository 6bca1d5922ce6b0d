"""Tables of images: the file, label, split, group and weight of each row."""

import glob
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from vit_train.base.text import listed
from vit_train.config.data import TAG_SEPARATORS, TableConfig, folder_of
from vit_train.data.columns import Stems, by_stem, table_rows, with_suffix
from vit_train.data.files import (
    ImageFile,
    SplitFiles,
    Trees,
    by_split,
    class_name,
    name_of,
    warn_of,
)
from vit_train.data.splits import split_of

# Values of the column split besides the usual names of splits: empty, and those of is_valid.
CELLS = {"": "train", "true": "val", "false": "train"}


class Row(NamedTuple):
    """A row of a table: its line, such as "a.csv, line 2", and its cells by COLUMN_NAMES.

    `split` is that of its table, or "".
    """

    table: TableConfig
    split: str
    line: str
    cells: dict[str, str]


def table_trees(config: TableConfig) -> Trees:
    """Return the trees that the rows of the tables describe, by their split.

    Raise ValueError if a file cannot be read, lacks a column, has an incomplete row or a split with
    an unusual name, or if its tags seem to be separated otherwise than by config.tag_separator.
    """
    rows = [
        Row(table, split, line, cells)
        for split, table in tables_of(config)
        for line, cells in table_rows(table)
    ]
    if not rows:
        raise ValueError(
            f"{config.file} lists no images, or there are none in data.root={config.root}"
        )
    stems = cache(by_stem)
    files = [image_file(row, stems) for row in rows]
    # The columns of classes may give labels in one table, and tags in another.
    has_tags = any("tags" in row.cells for row in rows)
    if has_tags and config.tag_separator is None:
        require_separated(files)
    parts = splits_of(rows)
    kept = without_repeats(rows, files, parts)
    files = [files[number] for number in kept]
    paths = {file.path for file in files}
    if len(paths) < len(files) or any(file.group is not None for file in files):
        # An image without a group is a group of its own, so all its labels stay in one split.
        files = [file._replace(group=file.group or name_of(file.path, config)) for file in files]
    if any(file.weight is not None for file in files):
        files = [file._replace(weight=1.0) if file.weight is None else file for file in files]
    tree = SplitFiles(Path(config.file), files, [], has_tags)
    return by_split(tree, [parts[number] for number in kept])


def without_repeats(
    rows: Sequence[Row], files: Sequence[ImageFile], parts: Sequence[str]
) -> list[int]:
    """Return the numbers of the rows without those that repeat another one, with a warning.

    Rows with a weight and a split may give an image several labels. Otherwise, raise ValueError if
    two rows list one image with different labels or splits.
    """
    first: dict[Path, int] = {}
    kept: dict[tuple[Path, str], int] = {}
    repeated = []
    for number, (row, file) in enumerate(zip(rows, files, strict=True)):
        other = first.setdefault(file.path, number)
        if kept.setdefault((file.path, file.label), number) != number:
            repeated.append(file.path)
        is_vote = file.weight is not None and "split" in row.cells
        is_other_label = file.label != files[other].label and not is_vote
        if is_other_label or parts[number] != parts[other]:
            raise ValueError(
                f"{row.line} lists {row.cells['path']} again, with another label or split than "
                f"{rows[other].line}: write one row for each image, with several classes as tags"
            )
    warn_of(repeated, "row", "left out (same image and label as an earlier row)")
    return [*kept.values()]


def splits_of(rows: Sequence[Row]) -> list[str]:
    """Return the split of each row: its cell, or that of its table, or that in its path.

    In paths, the first folder with a usual name counts, after those that all paths share, and only
    if some of them name train. Raise ValueError for an unusual name.
    """
    folders = [re.split(r"[/\\]", row.cells["path"])[:-1] for row in rows]
    levels = zip(*folders, strict=False)
    shared = len([*takewhile(lambda level: len(set(level)) == 1, levels)])
    in_paths = [next(filter(None, map(split_of, each[shared:])), "") for each in folders]
    is_divided = "train" in in_paths
    cells = [
        row.cells.get("split", row.split or (part if is_divided else "")).strip()
        for row, part in zip(rows, in_paths, strict=True)
    ]
    if is_divided and "split" not in rows[0].cells:
        warn_of(
            [Path(row.cells["path"]) for row, cell in zip(rows, cells, strict=True) if not cell],
            "image",
            "used for training, because no folder in its path names a split",
        )
    parts = [CELLS.get(cell.lower()) or split_of(cell) or "" for cell in cells]
    if "" in parts:
        unknown = dict.fromkeys(cell for cell, part in zip(cells, parts, strict=True) if not part)
        raise ValueError(
            f"{rows[parts.index('')].line}: the column of the split holds "
            f"{listed(list(unknown))}: write train, val or test, or rename the column if it does "
            "not hold the split"
        )
    return parts


def tables_of(config: TableConfig) -> list[tuple[str, TableConfig]]:
    """Return the table config.file or, of a pattern, all tables, each with its split.

    The split of one of several tables is the usual name in its name, or that of its folder; leave
    out tables without one, with a warning. The split of a single table is "".
    """
    matches = [] if Path(config.file).exists() else sorted(glob.glob(config.file, recursive=True))
    paths = [Path(name) for name in matches or [config.file]]
    splits = (
        [split_of(path.stem, within=True) or split_of(path.parent.name) for path in paths]
        if len(paths) > 1
        else [""]
    )
    warn_of(
        [path for path, split in zip(paths, splits, strict=True) if split is None],
        "table",
        "left out (no split is named in its name or its folder's)",
    )
    is_beside = config.root == folder_of(config.file)
    return [
        (
            split,
            replace(config, file=str(path), root=str(path.parent) if is_beside else config.root),
        )
        for path, split in zip(paths, splits, strict=True)
        if split is not None
    ]


def image_file(row: Row, stems: Stems) -> ImageFile:
    """Return the file of a row; raise ValueError, with its line, if the row is incomplete.

    `stems` is `by_stem`, or the same with a cache.
    """
    table, _, line, cells = row
    has_tags = "tags" in cells
    label = joined_tags(cells["tags"], table.tag_separator or "bar") if has_tags else cells["label"]
    if not cells["path"] or not (label.strip() or has_tags):
        raise ValueError(f"{line}: each row needs a path and a label")
    return ImageFile(
        with_suffix(Path(table.root, cells["path"].strip().replace("\\", "/")), stems),
        class_name(label.strip()),
        cells["group"].strip() if "group" in cells else None,
        weight_in(cells["weight"], line) if "weight" in cells else None,
    )


def joined_tags(cell: str, separator: str) -> str:
    """Return the tags in a cell, separated by "|".

    Leave out the brackets and quotes of lists such as ['a', 'b'].
    """
    return "|".join(tag.strip(" []'\"") for tag in cell.split(TAG_SEPARATORS[separator]))


def require_separated(files: Sequence[ImageFile]) -> None:
    """Raise ValueError if no cell with tags has a "|", but another separator gives fewer tags."""
    cells = {file.label for file in files}
    for name in () if any("|" in cell for cell in cells) else TAG_SEPARATORS:
        tags = {tag for cell in cells for tag in joined_tags(cell, name).split("|")}
        if len(tags) < len(cells):
            raise ValueError(
                f"the column tags holds {len(cells):,} different tags, such as {max(cells)}, but "
                f"{len(tags):,} if they are separated by {name}: set data.tag_separator={name}, or "
                "data.tag_separator=bar if each cell is one tag"
            )


def weight_in(text: str, line: str) -> float:
    """Return the weight in a cell, 1 if the cell is empty.

    Raise ValueError, with the `line` of the cell, unless it is a number from 0 to a million.
    """
    try:
        weight = float(text or 1)
    except ValueError:
        weight = math.nan
    if not 0 <= weight <= 1e6:
        raise ValueError(
            f"{line}: weight {text} must be a number from 0 to 1,000,000, such as 0.3 (empty: 1)"
        )
    return weight
