"""A user's decisions on single images: to relabel them or leave them out. No file is moved."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vit_train.base.log import logger
from vit_train.base.text import counted, listed, plain_cell
from vit_train.config.data import APPLIED, FolderConfig, TableConfig
from vit_train.data.files import SplitFiles, Trees, bulleted, listed_name
from vit_train.data.lines import read_lines

# The columns of data.decisions, and what a row decides.
COLUMNS = ("path", "what", "label", "why")
WHAT = ("keep", "relabel", "leave out")


def read_decisions(file: str) -> dict[str, dict[str, str]]:
    """Return the rows of data.decisions by the image's path, as a run lists it (`listed_name`).

    A row has COLUMNS and its "line" in the file. Raise ValueError if the file cannot be read or
    lacks a column, if a row decides something else, or if two rows differ on one image.
    """
    if not Path(file).is_file():
        raise ValueError(
            f"data.decisions={file}: there is no such file (browsers save it in the "
            "downloads folder)"
        )
    try:
        (_, header), *lines = read_lines(TableConfig(file=file)) or [(1, [])]
    except ValueError as error:
        raise ValueError(str(error).replace("data.file=", "data.decisions=", 1)) from None
    if not {"path", "what"} <= {*header}:
        raise ValueError(
            f"the first line of data.decisions={file} must name the columns, "
            f"{','.join(COLUMNS)}, but is {listed(header) or 'empty'}"
        )
    found: dict[str, dict[str, str]] = {}
    for number, cells in lines:
        if cells == header:
            continue  # of a second file, appended to the first
        row = dict.fromkeys(COLUMNS, "") | dict(zip(header, cells, strict=False))
        row["line"] = f"{file}, line {number}"
        if row["what"] not in WHAT:
            raise ValueError(
                f"{row['line']}: the column what must hold keep, relabel or leave out, not "
                f"{row['what'] or 'nothing'}"
            )
        first = found.setdefault(row["path"], row)
        if (first["what"], first["label"]) != (row["what"], row["label"]):
            raise ValueError(f"{row['line']} contradicts {first['line']}: delete one of the two")
    return found


def with_decisions(trees: Trees, file: str, config: FolderConfig) -> Trees:
    """Return the files of each split with their rows of data.decisions=`file`."""
    rows = read_decisions(file)
    return {
        part: replace(
            tree,
            files=[
                each._replace(decision=rows.get(listed_name(each.path, config)))
                for each in tree.files
            ],
        )
        for part, tree in trees.items()
    }


def relabeled(tree: SplitFiles, classes: Sequence[str]) -> SplitFiles:
    """Return the files with the labels that data.decisions gives them.

    Raise ValueError if such a label is not one of `classes` or, for tags, several of them.
    """
    known = {str(plain_cell(name)): name for name in classes} | {name: name for name in classes}
    files = list(tree.files)
    for number, file in enumerate(tree.files):
        row = file.decision
        if row and row["what"] == "relabel":
            label = row["label"]
            names = list(filter(None, label.split("|"))) if tree.has_tags else [label]
            if unknown := [name for name in names if name not in known]:
                raise ValueError(
                    f"{row['line']}: the label {unknown[0] or '(empty)'} is not a class of these "
                    f"images ({listed(classes)}): correct it; to begin a new class, first add "
                    "images of this class"
                )
            files[number] = file._replace(label="|".join(known[name] for name in names))
    return replace(tree, files=files)


def report_decisions(trees: Trees, file: str, root: str) -> None:
    """Log what data.decisions=`file` does, and warn of its rows whose image does not exist.

    Raise ValueError if no image of the file exists.
    """
    found = [each.decision for tree in trees.values() for each in tree.files if each.decision]
    missing = sorted(read_decisions(file).keys() - {row["path"] for row in found})
    if missing and not found:
        raise ValueError(
            f"none of the images in {file}, such as {missing[0]}, is in data.root={root}: "
            "use the data.root= with which its page was made"
        )
    counts = Counter(row["what"] for row in found)
    logger.info(
        f"{file}: {counted(counts['leave out'], 'image')} left out, {counts['relabel']:,} "
        f"relabeled, {counts['keep']:,} kept as they are"
    )
    if missing:
        logger.warning(
            f"{file} names images that do not exist; correct or delete these lines (paths are "
            f"relative to data.root):{bulleted(missing)}"
        )


def warn_of_undone(run: str) -> None:
    """Warn that the decisions that the earlier run data.split_as=`run` applied are not used."""
    file = Path(run, APPLIED)
    rows = read_decisions(str(file)).values() if file.is_file() else ()
    counts = Counter(row["what"] for row in rows)
    if counts["leave out"] or counts["relabel"]:
        logger.warning(
            f"{run} left {counted(counts['leave out'], 'image')} out and relabeled "
            f"{counts['relabel']:,}: to do so again, set data.decisions={file}"
        )
