"""Rewrite the tables of a Markdown page from the runs that it names.

    python docs/update_tables.py docs/results.md

A table stands between the lines `<!-- vit-results PATHS -->` and `<!-- end -->`, with paths or
patterns relative to the current folder.
"""

import glob
import re
import shlex
import sys
from pathlib import Path

from vit_train.results.table import read_groups, table

TABLE = re.compile(r"(<!-- vit-results ([^\n]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def updated(text: str) -> str:
    """Return the text of a page with its tables made anew."""

    def made(found: re.Match[str]) -> str:
        patterns = shlex.split(found[2])
        files = [Path(file) for pattern in patterns for file in sorted(glob.glob(pattern))]
        return f"{found[1]}\n{table(read_groups(files))}\n\n{found[3]}"

    return TABLE.sub(made, text)


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(updated(page.read_text(encoding="utf-8")), encoding="utf-8")
