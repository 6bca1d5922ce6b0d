"""`vit-results --update`: the tables of a Markdown page, made from the runs that it names."""

import glob
import shlex
from pathlib import Path

from vit_train.files.reading import read_text
from vit_train.files.writing import write_text
from vit_train.results.table import read_groups, table

# A table in a page stands between a line with the arguments of vit-results and another.
BEGIN, CLOSE, END = "<!-- vit-results ", " -->", "<!-- end -->"
PAGE_BYTES = 4_000_000


def update_page(page: Path) -> int:
    """Write each marked table in a Markdown page anew; return their number.

    A table stands between `<!-- vit-results PATHS -->`, with paths or patterns relative to the
    current folder, and `<!-- end -->`. Raise ValueError if there is none, or one without an end.
    """
    before = read_text(page, PAGE_BYTES)
    head, *pieces = before.split(BEGIN)
    marked = [split_piece(piece) for piece in pieces]
    if not marked or None in marked:
        raise ValueError(
            f"{page} needs lines <!-- vit-results RUNS --> and, after each, <!-- end -->"
        )
    tables = (f"{line}\n{made(runs)}\n\n{rest}" for runs, line, rest in filter(None, marked))
    after = BEGIN.join([head, *tables])
    if after != before:
        write_text(page, after)
    return len(marked)


def split_piece(piece: str) -> tuple[str, str, str] | None:
    """Split what follows BEGIN into the runs, the rest of their line, and what follows the table.

    Return None if the line does not end as it should, or if no END follows.
    """
    line, ends, below = piece.partition("\n")
    runs = line.removesuffix("\r")
    _, found, after = below.partition(END)
    if not (ends and found and runs.endswith(CLOSE) and runs != CLOSE):
        return None
    return runs.removesuffix(CLOSE), line + ends, found + after


def made(runs: str) -> str:
    """Return the table of the runs that a page names."""
    try:
        patterns = shlex.split(runs)
    except ValueError as error:  # an open quotation
        raise ValueError(f"{BEGIN}{runs}{CLOSE}: {error}") from error
    files = [file for each in patterns for file in sorted(glob.glob(each)) or [each]]
    return table(read_groups(list(map(Path, files))))
