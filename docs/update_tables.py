"""Rewrite the tables of Markdown pages from the runs that they name.

    python docs/update_tables.py docs/results/*.md

A table stands between the lines `<!-- vit-results PATHS -->` and `<!-- end -->`, with paths or
patterns relative to the current folder. A run is a column, so that every row is narrow.
"""

import glob
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from vit_train.results.gather import read_groups
from vit_train.results.table import table

TABLE = re.compile(r"(<!-- vit-results ([^\n]+) -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH = 100


def updated(text: str) -> str:
    """Return the text of a page with its tables made anew."""

    def made(found: re.Match[str]) -> str:
        patterns = shlex.split(found[2])
        files = [Path(file) for pattern in patterns for file in sorted(glob.glob(pattern))]
        return f"{found[1]}\n{upright(table(read_groups(files), None))}\n\n{found[3]}"

    return TABLE.sub(made, text)


def upright(wide: str) -> str:
    """Return the table with its rows as columns, cut into several where they are too wide."""
    titles, _, *runs = (re.split(r" ?(?<!\\)\| ?", line)[1:-1] for line in wide.splitlines())
    return "\n\n".join(
        "\n".join(f"| {' | '.join(cells)} |" for cells in zip(titles, *part, strict=True)).replace(
            "\n", f"\n|{'---|' * (len(part) + 1)}\n", 1
        )
        for part in parts(titles, runs)
    )


def parts(titles: list[str], runs: list[list[str]]) -> Iterator[list[list[str]]]:
    """Yield as many runs at a time as fit beside the titles."""
    part: list[list[str]] = []
    for run in runs:
        rows = zip(titles, *part, run, strict=True)
        if part and max(sum(len(cell) + 3 for cell in row) + 1 for row in rows) > WIDTH:
            yield part
            part = []
        part.append(run)
    yield part


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page = Path(name)
        page.write_text(updated(page.read_text(encoding="utf-8")), encoding="utf-8")
