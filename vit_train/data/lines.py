"""The lines of a table of images: from CSV, JSON, or label files, as for detectors."""

import csv
import io
import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import yaml

from vit_train.config.data import TableConfig
from vit_train.data.files import by_suffix, folded, walk, warn_of

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
# The lines of a table, each with its number, as cells.
Lines = list[tuple[int, list[str]]]
# The ends of the paths of files that list the names of classes.
CLASS_LISTS = ("/classes.txt", ".names", ".yaml", ".yml")


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
        first = text.lstrip("\n").partition("\n")[0]
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


def lines_of_images(config: TableConfig) -> Lines:
    """Return the lines of a table of all images in config.root with the classes of their objects.

    The file config.file lists the classes. If each image has exactly one, it is the label, or else
    the classes are tags. Leave out images without a label file, with a warning. Raise ValueError if
    a file cannot be read, or if a label file names no class of the list.
    """
    classes = class_list(Path(config.file))
    images, _ = by_suffix(walk(Path(config.root)))
    names = [image.relative_to(config.root).as_posix() for image in images]
    found = {
        name: classes_in(file, classes)
        for name in names
        if (file := label_file(config.root, name)).is_file()
    }
    warn_of(
        [Path(config.root, name) for name in names if name not in found],
        "image",
        "left out, for lack of a label file",
    )
    kind = "label" if all(len(each) == 1 for each in found.values()) else "tags"
    return [(0, ["path", kind]), *((0, [name, "|".join(found[name])]) for name in found)]


def label_file(root: str, name: str) -> Path:
    """Return the label file of an image: in labels/ in place of images/, or beside the image."""
    return Path(root + f"/{name}".replace("/images/", "/labels/")).with_suffix(".txt")


def classes_in(file: Path, classes: dict[int, str]) -> list[str]:
    """Return the classes in a label file, whose lines begin with the number of a class."""
    try:
        lines = map(str.split, file.read_text(encoding="utf-8").splitlines())
        return sorted({classes[int(cells[0])] for cells in lines if cells})
    except (ValueError, KeyError):
        raise ValueError(
            f"{file}: each line must begin with the number of a class, 0 to {len(classes) - 1}"
        ) from None


def class_list(file: Path) -> dict[int, str]:
    """Return the classes in a file by number: its lines or, in YAML, its list or table `names`."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        # BaseLoader builds nothing but text, lists and tables, and keeps names such as "no".
        names = (
            yaml.load(text, yaml.BaseLoader)["names"]
            if file.suffix.lower() in (".yaml", ".yml")
            else text.split("\n")
        )
        numbered = names.items() if isinstance(names, dict) else enumerate(names)
        return {int(number): name.strip() for number, name in numbered if name.strip()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, yaml.YAMLError):
        raise ValueError(
            f"data.file={file} must list the names of the classes, one a line or, in YAML, as "
            "names: [cat, dog]"
        ) from None
