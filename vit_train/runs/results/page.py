"""`vit-results --update`: the tables of a Markdown page, made from the runs that it names."""

import glob
import re
import shlex
from pathlib import Path

from vit_train.files.reading import read_text
from vit_train.files.writing import write_text
from vit_train.runs.results.compare import read_groups, table

# A table in a page, with the arguments of vit-results that it is made from.
MARKED_TABLE = re.compile(
    r"(<!-- vit-results (?P<runs>[^\n]+) -->\r?\n)((?!<!-- vit-results ).)*?(?=<!-- end -->)",
    re.DOTALL,
)
PAGE_BYTES = 4_000_000


def update_page(page: Path) -> int:
    """Write each marked table in a Markdown page anew; return their number.

    A table stands between `<!-- vit-results PATHS -->`, with paths or patterns relative to the
    current folder, and `<!-- end -->`. Raise ValueError if there is none, or one without an end.
    """
    before = read_text(page, PAGE_BYTES)
    after, tables = MARKED_TABLE.subn(marked_table, before)
    if tables == 0 or tables != before.count("<!-- vit-results "):
        raise ValueError(
            f"{page} needs lines <!-- vit-results RUNS --> and, after each, <!-- end -->"
        )
    if after != before:
        write_text(page, after)
    return tables


def marked_table(marker: re.Match[str]) -> str:
    try:
        patterns = shlex.split(marker["runs"])
    except ValueError as error:  # an open quotation
        raise ValueError(f"<!-- vit-results {marker['runs']} -->: {error}") from error
    files = [file for each in patterns for file in sorted(glob.glob(each)) or [each]]
    return f"{marker[1]}\n{table(read_groups(list(map(Path, files))))}\n\n"
