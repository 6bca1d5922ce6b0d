"""Tables of images: the rows of CSV files, whose columns may have any of their usual names."""

import csv
import glob
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, takewhile
from pathlib import Path
from typing import NamedTuple

from vit_train.base.log import logger
from vit_train.base.text import listed
from vit_train.config.data import TAG_SEPARATORS, TableConfig, folder_of
from vit_train.data.files import (
    SUFFIXES,
    ImageFile,
    SplitFiles,
    Trees,
    by_split,
    class_name,
    folded,
    images_in,
    warn_of,
)
from vit_train.data.label_files import CLASS_LISTS, Lines, lines_of_images
from vit_train.data.splits import split_of

# The usual names of each column, as by `folded`. If a table has several of them, the first is used.
COLUMN_NAMES = {
    "path": (
        "path",
        "file",
        "filename",
        "filepath",
        "image",
        "imagepath",
        "imagename",
        "imageid",
        "id",
    ),
    "label": ("label", "class", "category", "target", "classid"),
    "tags": ("tags",),
    "split": ("split", "set", "subset", "fold", "isvalid"),
    "weight": ("weight",),
}
# Values of the column split besides the usual names of splits: empty, and those of is_valid.
CELLS = {"": "train", "true": "val", "false": "train"}


# The place of each column, by its name.
Columns = Mapping[str, int]
# A function from a folder to its image files by their names without suffix.
Stems = Callable[[Path], Mapping[str, Sequence[Path]]]


class Row(NamedTuple):
    """A row of a table: its place, such as "a.csv, line 2", and its cells by COLUMN_NAMES.

    `split` is that of its table, or "".
    """

    table: TableConfig
    split: str
    place: str
    cells: dict[str, str]


def table_trees(config: TableConfig) -> Trees:
    """Return the trees that the rows of the tables describe, by their split.

    Raise ValueError if a file cannot be read, lacks a column, has an incomplete row or a split with
    an unusual name, or if its tags seem to be separated otherwise than by config.tag_separator.
    """
    rows = [
        Row(table, split, place, cells)
        for split, table in tables_of(config)
        for place, cells in table_rows(table)
    ]
    if not rows:
        raise ValueError(f"{config.file} lists no images")
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
        files = [file._replace(group=file.group or str(file.path)) for file in files]
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
                f"{row.place} lists {row.cells['path']} again, with another label or split than "
                f"{rows[other].place}: write one row for each image, with several classes as tags"
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
            f"{rows[parts.index('')].place}: the column of the split holds "
            f"{listed(list(unknown))}: write train, val or test, or rename the column if it does "
            "not hold the split"
        )
    return parts


def tables_of(config: TableConfig) -> list[tuple[str, TableConfig]]:
    """Return the table config.file or, of a pattern, all tables, each with its split.

    The split of one of several tables is the usual name in its name, or that of its folder; leave
    out tables without one, with a warning. The split of a single table is "".
    """
    matches = [] if Path(config.file).exists() else sorted(glob.glob(config.file))
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
    """Return the file of a row; raise ValueError, with its place, if the row is incomplete.

    `stems` is `by_stem`, or the same with a cache.
    """
    table, _, place, cells = row
    has_tags = "tags" in cells
    label = joined_tags(cells["tags"], table.tag_separator or "bar") if has_tags else cells["label"]
    if not cells["path"] or not (label.strip() or has_tags):
        raise ValueError(f"{place}: each row needs a path and a label")
    return ImageFile(
        with_suffix(Path(table.root, cells["path"].replace("\\", "/")), stems),
        class_name(label.strip()),
        cells["group"].strip() if "group" in cells else None,
        weight_in(cells["weight"], place) if "weight" in cells else None,
    )


def with_suffix(path: Path, stems: Stems) -> Path:
    """Return the image file of an id without a suffix, such as 7 for 7.jpg, or `path` itself.

    Raise ValueError if the id fits several files.
    """
    if path.suffix.lower() in SUFFIXES or path.is_file():
        return path
    found = stems(path.parent).get(path.name, [path])
    if len(found) > 1:
        raise ValueError(f"{path} may be {found[0].name} or {found[1].name}: write the suffix")
    return found[0]


def by_stem(folder: Path) -> dict[str, list[Path]]:
    """Return the image files in a folder by their names without suffix."""
    found: dict[str, list[Path]] = {}
    for path in images_in(folder):
        found.setdefault(path.stem, []).append(path)
    return found


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


def table_rows(config: TableConfig) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each row's place, such as "a.csv, line 2", and its cells by COLUMN_NAMES or "group".

    Raise ValueError if the file cannot be read, lacks a column, or has more cells than columns.
    """
    headers, lines = split_headers(read_lines(config), config)
    places = [f"{config.file}, line {number}" for number, _ in lines]
    rows = [as_cells(row, headers, place) for place, (_, row) in zip(places, lines, strict=True)]
    columns = columns_of(headers, config)
    if rows and not config.columns:
        columns |= column_of_files(rows[0], headers, columns, config)
    others = {  # the columns with a name (not _) that are not used yet
        header: place
        for place, header in enumerate(headers)
        if header not in ("", "_") and place not in columns.values()
    }
    if columns.keys().isdisjoint(("label", "tags")) and (found := label_column(others, rows)):
        columns[found[0]] = len(headers)
        rows = [[*row, cell] for row, cell in zip(rows, found[1], strict=True)]
        others = {}
    require_columns(headers, columns, config)
    if rows and others:
        check_others(headers, others, rows, columns, config)
    for place, row in zip(places, rows, strict=True):
        yield place, {name: row[number] for name, number in columns.items()}


def column_of_files(
    row: Sequence[str], headers: Sequence[str], columns: Columns, config: TableConfig
) -> dict[str, int]:
    """Return the place of the path: the only cell of the `row` that names an image.

    Return {} if a column is called path, except an id without a file.
    """
    own = columns.get("path")
    if own is not None and (
        folded(headers[own]) != "id"  # other names are of images, beside which masks may be named
        or with_suffix(Path(config.root, row[own]), by_stem).is_file()
    ):
        return {}
    places = [place for place, cell in enumerate(row) if cell.lower().endswith(SUFFIXES)]
    return {"path": places[0]} if len(places) == 1 and places[0] not in columns.values() else {}


def split_headers(lines: Lines, config: TableConfig) -> tuple[Sequence[str], Lines]:
    """Return the names of the columns, config.columns if set, and the lines of images.

    A first line with the name of an image is one of them; without config.columns, two cells in it
    are a path and a label, in either order. With config.columns, the name may lack its suffix.
    """
    first = lines[0][1] if lines else []
    is_image = [cell.lower().endswith(SUFFIXES) for cell in first]
    columns = config.columns or first
    if not config.columns and sorted(is_image) == [False, True]:
        columns = ["path", "label"] if is_image[0] else ["label", "path"]
    place = columns_of(columns, config).get("path", 0)
    path = Path(config.root, *first[place : place + 1])
    has_id = bool(config.columns) and with_suffix(path, by_stem).is_file()
    if has_id or any(is_image):
        return columns, lines
    if config.columns:
        logger.info(f"{config.file}: the first line, {listed(first)}, is not read as an image")
    return columns, lines[1:]


def as_cells(row: Sequence[str], headers: Sequence[str], place: str) -> list[str]:
    """Return a row with a cell for each header; it may lack its last cells.

    Raise ValueError, with the row's `place`, if it has more cells.
    """
    if any(row[len(headers) :]):
        raise ValueError(
            f"{place}: there are more cells than columns: put cells that contain a separator into "
            "double quotes"
        )
    return [*row[: len(headers)], *[""] * (len(headers) - len(row))]


def read_lines(config: TableConfig) -> Lines:
    """Return the lines that are not empty, each with its number, as cells.

    Raise ValueError if the file cannot be read.
    """
    if f"/{Path(config.file).name.lower()}".endswith(CLASS_LISTS):
        return lines_of_images(config)
    try:
        if not Path(config.file).is_file():
            raise ValueError("there is no regular file of this name")
        # A file that was appended to another one may begin with a byte order mark, too.
        text = Path(config.file).read_text(encoding="utf-8").replace("\ufeff", "")
        if config.file.lower().endswith((".json", ".jsonl", ".ndjson")):
            return json_lines(text)
        first = text.partition("\n")[0]
        delimiter = delimiter_of(first, config.columns)
        lines = csv.reader(io.StringIO(text), delimiter=delimiter, skipinitialspace=True)
        return [(lines.line_num, line) for line in lines if any(line)]
    except UnicodeDecodeError:
        raise ValueError(
            f"data.file={config.file} is not in UTF-8: save it again as “CSV UTF-8”"
        ) from None
    except (OSError, csv.Error, ValueError) as error:
        raise ValueError(f"data.file={config.file} cannot be read as a table: {error}") from None


def delimiter_of(first: str, columns: Sequence[str] | None) -> str:
    """Return what separates the cells of the `first` line, which has these columns if known."""
    for delimiter in ",;\t ":
        if columns and first.count(delimiter) == len(columns) - 1:
            return delimiter
    # Spreadsheets of many countries separate cells by semicolons; lists have only spaces.
    delimiter = max(",;\t", key=first.count)
    return delimiter if delimiter in first else " "


def json_lines(text: str) -> Lines:
    """Return the keys of JSON objects, in an array or one a line, and the objects as lines."""
    if text.lstrip().startswith("["):
        records = list(enumerate(json.loads(text), start=1))
    else:
        lines = enumerate(text.split("\n"), start=1)
        records = [(number, json.loads(line)) for number, line in lines if line.strip()]
    if not all(isinstance(each, dict) for _, each in records):
        raise ValueError('each line must be an object, such as {"path": "1.jpg", "label": "cat"}')
    keys = list(dict.fromkeys(chain.from_iterable(each for _, each in records)))
    return [(0, keys), *((n, [in_cell(key, each.get(key)) for key in keys]) for n, each in records)]


def in_cell(key: str, value: object) -> str:
    """Return a value of a JSON object as a cell; a list becomes tags."""
    if isinstance(value, list | dict) and folded(key) in COLUMN_NAMES["label"]:
        raise ValueError(f"{key} must be one class; a list of tags must have the key tags")
    if isinstance(value, list):
        return "|".join(map(str, value))
    return "" if value is None else str(value)


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


def require_columns(headers: Sequence[str], found: Columns, config: TableConfig) -> None:
    """Raise ValueError, with all headers, if a column is missing; `found` has the usual columns."""
    needed = ("path", "tags" if "tags" in found else "label")
    if missing := [name for name in needed if name not in found]:
        usual = {place: name for name, place in found.items()}
        names = (usual.get(place) or re.sub(r"\W", "_", n) for place, n in enumerate(headers))
        raise ValueError(
            f"{config.file} has no column {' and no column '.join(missing)}: its first line is "
            f"{listed(headers) or 'empty'}. Add 'data.columns=[{','.join(names)}]' with "
            f"{' and '.join(missing)} in the right place, or let all other columns hold 1 and 0, "
            "for one class each"
        )
    if config.group_by not in (None, TableConfig.group_by) and "group" not in found:
        raise ValueError(f"{config.file} has no column {config.group_by} (data.group_by)")


# The cells of a column that holds whether an image is of a class.
MARKS = dict.fromkeys(("1", "1.0", "true", "yes"), True) | dict.fromkeys(
    ("0", "0.0", "-1", "-1.0", "false", "no"), False
)


def mark_in(cell: str) -> bool | None:
    """Return whether an image is of a class, or None for a cell that does not hold this."""
    return MARKS.get(cell.strip().lower())


def is_mark_of_split(header: str) -> bool:
    """Return True for names such as is_train."""
    return header.lower().startswith("is_") and split_of(header[3:]) is not None


def label_column(others: Columns, rows: Sequence[Sequence[str]]) -> tuple[str, list[str]] | None:
    """Return the name, label or tags, and the cells of the column that `others` stand for.

    A single column is the label if its values occur at least twice on average and do not all name
    splits. Several columns stand for one class each if all their cells are MARKS: they give a label
    if each row has exactly one class, otherwise tags. In all other cases, return None.
    """
    places = [*others.values()]
    values = {row[place] for row in rows for place in places}
    if len(places) == 1 and 2 * len(values) <= len(rows) and not all(map(split_of, values)):
        return "label", [row[places[0]] for row in rows]
    if len(places) < 2 or None in map(mark_in, values):
        return None
    if any(map(is_mark_of_split, others)):
        return None
    marked = [[name for name, place in others.items() if mark_in(row[place])] for row in rows]
    kind = "label" if all(len(names) == 1 for names in marked) else "tags"
    return kind, ["|".join(names) for names in marked]


def check_others(
    headers: Sequence[str],
    others: Columns,
    rows: Sequence[Sequence[str]],
    columns: Columns,
    config: TableConfig,
) -> None:
    """Log the headers of the columns that are not used, `others`.

    Raise ValueError if no column split is used, but one of them has a header such as is_train, a
    first cell that names a split, or cells that name several.
    """
    splits = []
    for header, place in others.items():
        named = {split_of(row[place]) for row in rows} - {None}
        if split_of(rows[0][place]) or len(named) > 1 or is_mark_of_split(header):
            splits.append(f"{header} ({rows[0][place]})")
    if splits and "split" not in columns:
        raise ValueError(
            f"{config.file} seems to hold the split in the column {listed(splits)}: call it split "
            "and write train, val or test, or delete it"
        )
    used = listed([headers[place] for place in columns.values()])
    logger.info(f"{config.file}: columns {used}; not used: {listed([*others])}")
