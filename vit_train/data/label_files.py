"""Images with label files, as for detectors: labels/7.txt lists the objects in images/7.jpg."""

from pathlib import Path

import yaml

from vit_train.config.data import TableConfig
from vit_train.data.files import by_suffix, walk, warn_of

# The lines of a table, each with its number, as cells.
Lines = list[tuple[int, list[str]]]
# The ends of the paths of files that list the names of classes.
CLASS_LISTS = ("/classes.txt", ".names", ".yaml", ".yml")


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
