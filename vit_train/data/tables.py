"""Tables of images: the rows of a CSV file, whose columns may have any of their usual names."""

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import chain
from pathlib import Path

from vit_train.base.log import logger
from vit_train.base.text import listed
from vit_train.config.data import TAG_SEPARATORS, TableConfig
from vit_train.data.files import (
    SUFFIXES,
    ImageFile,
    SplitFiles,
    by_split,
    class_name,
    folded,
    images_in,
)
from vit_train.data.splits import split_of

# The usual names of each column, as by `folded`. If a table has several of them, the first is used.
COLUMN_NAMES = {
    "path": ("path", "file", "filename", "filepath", "image", "imagepath", "imageid", "id"),
    "label": ("label", "class", "category", "target"),
    "tags": ("tags",),
    "split": ("split", "set", "subset", "fold", "isvalid"),
    "weight": ("weight",),
}
# Values of the column split besides the usual names of splits: empty, and those of is_valid.
CELLS = {"": "train", "true": "val", "false": "train"}


def table_trees(config: TableConfig) -> dict[str, SplitFiles]:
    """Return the trees that the rows of a CSV file describe, by their split.

    Raise ValueError if the file cannot be read, lacks a column, has an incomplete row or a split
    with an unusual name, or if its tags seem to be separated otherwise than by
    config.tag_separator.
    """
    rows = list(table_rows(config))
    if not rows:
        raise ValueError(f"{config.file} lists no images")
    cells = [row.get("split", "").strip() for _, row in rows]
    parts = [CELLS.get(cell.lower()) or split_of(cell) or "" for cell in cells]
    if "" in parts:
        unknown = dict.fromkeys(cell for cell, part in zip(cells, parts, strict=True) if not part)
        raise ValueError(
            f"{config.file}, line {rows[parts.index('')][0]}: the column of the split holds "
            f"{listed(list(unknown))}: write train, val or test, or rename the column if it does "
            "not hold the split"
        )
    folders: dict[Path, dict[str, Path]] = {}
    files = [
        image_file(row, f"{config.file}, line {number}", config, folders) for number, row in rows
    ]
    has_tags = "tags" in rows[0][1]
    if has_tags and config.tag_separator is None:
        require_separated(files)
    return by_split(SplitFiles(Path(config.file), files, [], has_tags), parts)


def image_file(
    row: Mapping[str, str],
    place: str,
    config: TableConfig,
    folders: dict[Path, dict[str, Path]],
) -> ImageFile:
    """Return the file of a row; raise ValueError, with its `place`, if the row is incomplete.

    `folders` are those of `with_suffix`.
    """
    has_tags = "tags" in row
    label = joined_tags(row["tags"], config.tag_separator or "bar") if has_tags else row["label"]
    if not row["path"] or not (label.strip() or has_tags):
        raise ValueError(f"{place}: each row needs a path and a label")
    return ImageFile(
        with_suffix(Path(config.root, row["path"].replace("\\", "/")), folders),
        class_name(label.strip()),
        # An image without a group is a group of its own.
        (row["group"].strip() or row["path"]) if "group" in row else None,
        weight_in(row["weight"], place) if "weight" in row else None,
    )


def with_suffix(path: Path, folders: dict[Path, dict[str, Path]]) -> Path:
    """Return the image file of an id without a suffix, such as 7 for 7.jpg, or `path` itself.

    `folders` keeps the image files of each folder, by their names without suffix.
    """
    if path.suffix.lower() in SUFFIXES or path.is_file():
        return path
    if path.parent not in folders:
        folders[path.parent] = {each.stem: each for each in images_in(path.parent)}
    return folders[path.parent].get(path.name, path)


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
    """Yield the number of each line of the table, and its cells by COLUMN_NAMES or "group".

    Raise ValueError if the file cannot be read, lacks a column, or has more cells than columns.
    """
    lines = read_lines(config)
    headers = config.columns or (lines.pop(0)[1] if lines else [])
    columns = columns_of(headers, config)
    # A row may lack its last cells.
    rows = [(number, [*row, *[""] * (len(headers) - len(row))]) for number, row in lines]
    for number, row in rows:
        if any(row[len(headers) :]):
            raise ValueError(
                f"{config.file}, line {number}: there are more cells than columns: put cells that "
                "contain a separator into double quotes"
            )
    classes = {} if {"label", "tags"} & columns.keys() else class_columns(headers, rows, columns)
    require_columns(headers, columns.keys() | ({"label"} if classes else set()), config)
    if rows:
        check_others(headers, rows[0][1], columns | classes, config)
    marked = [[name for name, place in classes.items() if is_marked(row[place])] for _, row in rows]
    kind = "label" if all(len(names) == 1 for names in marked) else "tags"
    for (number, row), names in zip(rows, marked, strict=True):
        cells = {name: row[place] for name, place in columns.items()}
        yield number, cells | ({kind: "|".join(names)} if classes else {})


def read_lines(config: TableConfig) -> list[tuple[int, list[str]]]:
    """Return the lines that are not empty, each with its number, as cells.

    A file of JSON objects, one a line (.jsonl), gets a first line with their keys. Raise ValueError
    if the file cannot be read.
    """
    try:
        text = Path(config.file).read_text(encoding="utf-8-sig")
        if config.file.endswith(".jsonl"):
            records = [json.loads(line) for line in text.splitlines() if line.strip()]
            keys = list(dict.fromkeys(chain.from_iterable(records)))
            rows = [[in_cell(record.get(key, "")) for key in keys] for record in records]
            return list(enumerate([keys, *rows]))
        first = text.partition("\n")[0]
        # Spreadsheets of many countries separate cells by semicolons; lists have only spaces.
        delimiter = max(",;\t", key=first.count)
        lines = csv.reader(io.StringIO(text), delimiter=delimiter if delimiter in first else " ")
        return [(lines.line_num, line) for line in lines if any(line)]
    except UnicodeDecodeError:
        raise ValueError(
            f"data.file={config.file} is not in UTF-8: save it again as “CSV UTF-8”"
        ) from None
    except (OSError, csv.Error, ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"data.file={config.file} cannot be read as a table: {error}") from None


def in_cell(value: object) -> str:
    """Return a value of a JSON object as a cell; a list becomes tags."""
    return "|".join(map(str, value)) if isinstance(value, list) else str(value)


def columns_of(headers: Sequence[str], config: TableConfig) -> dict[str, int]:
    """Return the place of each usual column; of columns with one name, the first."""
    names = [folded(header) for header in headers]
    named = COLUMN_NAMES | ({"group": (folded(config.group_by),)} if config.group_by else {})
    columns = {
        column: names.index(name)
        for column, usual in named.items()
        for name in reversed(usual)
        if name in names
    }
    if "tags" in columns:
        columns.pop("label", None)
    return columns


def require_columns(headers: Sequence[str], found: Set[str], config: TableConfig) -> None:
    """Raise ValueError, with all headers, if one of the columns is missing."""
    for column in ("path", "tags" if "tags" in found else "label"):
        if column not in found:
            raise ValueError(
                f"{config.file} has no column {column}: the first line must name the columns, such "
                "as path,label,split or, for several tags per image, path,tags (cat|dog). For a "
                "table without such a line, set data.columns=[path,label]. This first line is "
                f"{listed(headers) or 'empty'}"
            )
    if config.group_by not in (None, TableConfig.group_by) and "group" not in found:
        raise ValueError(f"{config.file} has no column {config.group_by} (data.group_by)")


MARKS = ("1", "1.0", "true", "yes")
NO_MARKS = ("0", "0.0", "-1", "-1.0", "false", "no", "")


def is_marked(cell: str) -> bool:
    """Return True if a cell of a class's column says that the image is of this class."""
    return cell.strip().lower() in MARKS


def class_columns(
    headers: Sequence[str], rows: Sequence[tuple[int, Sequence[str]]], columns: Mapping[str, int]
) -> dict[str, int]:
    """Return the places of the columns that mark, with 1 and 0, the images of one class each.

    A single such column is no table of classes.
    """
    found = {
        header: place
        for place, header in enumerate(headers)
        if header
        and place not in columns.values()
        and {row[place].strip().lower() for _, row in rows} <= {*MARKS, *NO_MARKS}
        and any(is_marked(row[place]) for _, row in rows)
    }
    return found if len(found) > 1 else {}


def check_others(
    headers: Sequence[str], row: Sequence[str], columns: Mapping[str, int], config: TableConfig
) -> None:
    """Log the headers of the columns that are not used.

    Raise ValueError if one of them holds a split in the first `row`, but no column split is used.
    """
    used = [headers[place] for place in columns.values()]
    others = {
        place: header
        for place, header in enumerate(headers)
        if header and place not in columns.values()
    }
    splits = [
        f"{others[place]} ({cell})"
        for place, cell in enumerate(row)
        if place in others and split_of(cell)
    ]
    if splits and "split" not in columns:
        raise ValueError(
            f"{config.file} seems to hold the split in the column {listed(splits)}: call it split "
            "and write train, val or test, or delete it"
        )
    if others:
        logger.info(
            f"{config.file}: columns {listed(used)}; not used: {listed([*others.values()])}"
        )
