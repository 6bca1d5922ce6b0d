"""Rewrite the tables of Markdown pages from the runs that they name.

    python docs/update_tables.py docs/results/*.md

A table stands between the lines `<!-- vit-results PATHS -->` and `<!-- end -->`, with paths or
patterns relative to the current folder. Each row has the final weights' result of the runs that
differ only in their seeds; each seed is a link to its run's summary, which has everything else.
"""

import glob
import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from vit_train.base.text import markdown_cell
from vit_train.evaluate.cells import columns, common_measure, each_once
from vit_train.evaluate.results import read_groups
from vit_train.evaluate.summaries import Group

TABLE = re.compile(r"(<!-- vit-results ([^\n]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def updated(text: str, folder: Path) -> str:
    """Return the text of a page in `folder` with its tables made anew."""

    def made(found: re.Match[str]) -> str:
        patterns = shlex.split(found[2])
        files = [Path(file) for pattern in patterns for file in sorted(glob.glob(pattern))]
        return f"{found[1]}\n{table(read_groups(files), folder)}\n\n{found[3]}"

    return TABLE.sub(made, text)


def table(groups: Sequence[Group], folder: Path) -> str:
    """Return a Markdown table with a row for each group, and a line on commits and machines."""
    measure = common_measure(groups)
    test, best, val = (
        measure.column.format(split, epoch)
        for split, epoch in (
            *(("test", "final weights"), ("test", "best epoch")),
            ("validation", "best epoch"),
        )
    )
    found = [columns(group, None, measure, []) for group in groups]
    rows = []
    for group, cells in zip(groups, found, strict=True):
        interval = cells["95 % interval"]
        chosen = {best: cells[best].removesuffix(" (selected on test)")} if not cells[val] else {}
        rows.append(
            {
                "runs": markdown_cell(label(group, groups)),
                "seeds": ", ".join(link(run, folder) for run in group.runs),
                test: cells[test] + (f" ({interval})" if interval else ""),
                **chosen,
                val: cells[val],
                **{title: cells[title] for title in ("images seen", "training TFLOP")},
                "minutes (in steps)": f"{cells['minutes']} ({cells['minutes in steps'] or '–'})",
            }
        )
    titles = [title for title in dict.fromkeys(key for row in rows for key in row)
              if any(row.get(title) for row in rows)]  # fmt: skip
    lines = [
        titles,
        ["---" for _ in titles],
        *([row.get(key, "") for key in titles] for row in rows),
    ]
    where = (each_once(part for cells in found for part in cells[title].split(", "))
             for title in ("commit", "cores", "machine"))  # fmt: skip
    commits, cores, machines = where
    facts = f"Commits: {commits}. Cores: {cores}." + (f" CPUs: {machines}." if machines else "")
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{facts}"


def label(group: Group, groups: Sequence[Group]) -> str:
    """Return what tells a group from the others: its name, if they have names, or its settings."""
    if len(groups) == 1:
        return ""
    names = group.values("config", "name")
    named = any(each.values("config", "name") for each in groups)
    return names[0] if names else "unchanged" if named else group.label()


def link(run: dict[str, object], folder: Path) -> str:
    """Return a run's seed as a link from a page in `folder` to the run's summary."""
    config = run["config"]
    assert isinstance(config, dict)
    return f"[{config['seed']}]({os.path.relpath(str(run['file']), folder)})"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page = Path(name)
        page.write_text(updated(page.read_text(encoding="utf-8"), page.parent), encoding="utf-8")
