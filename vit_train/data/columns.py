"""The columns of a table of images, which may have any of their usual names, or none."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from vit_train.base.log import logger
from vit_train.base.text import listed
from vit_train.config.data import TableConfig
from vit_train.data.files import SUFFIXES, folded, images_in
from vit_train.data.lines import COLUMN_NAMES, Lines, read_lines
from vit_train.data.splits import split_of

# The index of each column, by its name.
Columns = Mapping[str, int]
# A function from a folder to its image files by their names without suffix.
Stems = Callable[[Path], Mapping[str, Sequence[Path]]]


def table_rows(config: TableConfig) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each row's line, such as "a.csv, line 2", and its cells by COLUMN_NAMES or "group".

    Raise ValueError if the file cannot be read, lacks a column, or has more cells than columns.
    """
    headers, numbered = split_headers(read_lines(config), config)
    lines = [f"{config.file}, line {number}" for number, _ in numbered]
    rows = [as_cells(row, headers, line) for line, (_, row) in zip(lines, numbered, strict=True)]
    columns = columns_of(headers, config)
    if rows and not config.columns:
        columns |= column_of_files(rows[0], headers, columns, config)
    others = {  # the columns with a name (not _) that are not used yet
        header: index
        for index, header in enumerate(headers)
        if header not in ("", "_") and index not in columns.values()
    }
    if any(header.lower().endswith(SUFFIXES) for header in headers):
        others = {}  # the first line lists an image, and names no columns
    if columns.keys().isdisjoint(("label", "tags")) and (found := label_column(others, rows)):
        columns[found[0]] = len(headers)
        rows = [[*row, cell] for row, cell in zip(rows, found[1], strict=True)]
        others = {}
    require_columns(headers, columns, config)
    if rows and others:
        check_others(headers, others, rows, columns, config)
    for line, row in zip(lines, rows, strict=True):
        yield line, {name: row[index] for name, index in columns.items()}


def column_of_files(
    row: Sequence[str], headers: Sequence[str], columns: Columns, config: TableConfig
) -> dict[str, int]:
    """Return the index of the path: the only cell of the `row` that names an image.

    Return {} if a column is called path, except an id without a file.
    """
    own = columns.get("path")
    if own is not None and (
        folded(headers[own]) != "id"  # other names are of images, beside which masks may be named
        or with_suffix(Path(config.root, row[own]), by_stem).is_file()
    ):
        return {}
    indices = [index for index, cell in enumerate(row) if cell.lower().endswith(SUFFIXES)]
    return {"path": indices[0]} if len(indices) == 1 and indices[0] not in columns.values() else {}


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
    index = columns_of(columns, config).get("path", 0)
    path = Path(config.root, *first[index : index + 1])
    has_id = config.columns and with_suffix(path, by_stem).is_file()
    if has_id or any(is_image):
        return columns, lines
    if config.columns:
        logger.info(f"{config.file}: the first line, {listed(first)}, is not read as an image")
    return columns, lines[1:]


def as_cells(row: Sequence[str], headers: Sequence[str], line: str) -> list[str]:
    """Return a row with a cell for each header; it may lack its last cells.

    Raise ValueError, with the row's `line`, if it has more cells.
    """
    if any(row[len(headers) :]):
        raise ValueError(
            f"{line}: there are more cells than columns: put cells that contain a separator into "
            "double quotes"
        )
    return [*row[: len(headers)], *[""] * (len(headers) - len(row))]


def columns_of(headers: Sequence[str], config: TableConfig) -> dict[str, int]:
    """Return the index of each usual column; of columns with one name, the first."""
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
        usual = {index: name for name, index in found.items()}
        names = (usual.get(index) or re.sub(r"\W", "_", n) for index, n in enumerate(headers))
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
    indices = [*others.values()]
    values = {row[index] for row in rows for index in indices}
    if len(indices) == 1 and 2 * len(values) <= len(rows) and not all(map(split_of, values)):
        return "label", [row[indices[0]] for row in rows]
    if len(indices) < 2 or None in map(mark_in, values):
        return None
    if any(map(is_mark_of_split, others)):
        return None
    marked = [[name for name, index in others.items() if mark_in(row[index])] for row in rows]
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
    for header, index in others.items():
        named = {split_of(row[index]) for row in rows} - {None}
        if split_of(rows[0][index]) or len(named) > 1 or is_mark_of_split(header):
            splits.append(f"{header} ({rows[0][index]})")
    if splits and "split" not in columns:
        raise ValueError(
            f"{config.file} seems to hold the split in the column {listed(splits)}: call it split "
            "and write train, val or test, or delete it"
        )
    used = listed([headers[index] for index in columns.values()])
    logger.info(f"{config.file}: columns {used}; not used: {listed([*others])}")


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
