"""`vit-results`: the summaries of many runs as tables and curves."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from vit_train.base.reading import require_config
from vit_train.base.text import csv_text, markdown_cell, printable
from vit_train.base.writing import write_text
from vit_train.evaluate.cells import (
    DIFFERENCE,
    INTERVAL,
    cells,
    common_measure,
    group_rows,
    run_rows,
    setting_keys,
)
from vit_train.evaluate.differences import find_baseline, on_same_images
from vit_train.evaluate.summaries import (
    Group,
    group_runs,
    read_summaries,
    short_name,
    validated_on,
)
from vit_train.figures.charts import Figure, curves, save


def gather_results(paths: Sequence[Path], out: Path | None, baseline: str | None) -> Path:
    """Print a table of the runs, and write all tables and curves.png into a folder.

    There are curves if every run has a metrics.csv. The folder is `out`, by default the result of
    `folder_beside`. Groups are compared with the group that has the settings `baseline`, by default
    with the first group. Return the folder; raise OSError if files cannot be written.
    """
    groups = read_groups(paths)
    first = find_baseline(groups, baseline) if len(groups) > 1 or baseline else None
    out = out or folder_beside(paths)
    short = short_rows(groups, first)
    print(text_table(short))  # first, because the folder may be read-only
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "results.md", f"{table(groups, first)}\n")
    write_text(out / "results.tex", latex_table(short))
    for name, rows in (("results", group_rows(groups, first)), ("runs", run_rows(groups))):
        csv = csv_text([rows[0], *(row.values() for row in rows)])
        write_text(out / f"{name}.csv", printable(csv, "\r\n"))
    if all(run["curve"] for group in groups for run in group.runs):
        save(draw_groups(groups), out / "curves.png")
    else:
        (out / "curves.png").unlink(missing_ok=True)  # an earlier one may belong to other runs
    return out


def read_groups(paths: Sequence[Path]) -> list[Group]:
    """Return the finished runs at these paths, grouped by their settings.

    Raise ValueError, naming the file, if a summary lacks a number that the tables need.
    """
    runs = read_summaries(paths)
    for run in runs:
        try:
            require_config(run["config"], "its config")
            for group in (*group_runs([run]), Group({}, [run, run])):  # alone, and with a spread
                table([group], group)
                run_rows([group])
                group_rows([group], group)
            on_same_images(run, run, "test")
        except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
            raise ValueError(f"{run['file']} was not written by vit-train") from error
    return group_runs(runs)


def folder_beside(paths: Sequence[Path]) -> Path:
    """Return the deepest folder that contains all paths; for a single folder, the folder itself."""
    if len(paths) == 1 and paths[0].is_dir():
        return paths[0]
    return Path(os.path.relpath(os.path.commonpath([path.parent.resolve() for path in paths])))


def draw_groups(groups: Sequence[Group]) -> Figure:
    """Draw the training curves of the groups."""
    runs = [run for group in groups for run in group.runs]
    histories = [(group.title, [run["curve"] for run in group.runs]) for group in groups]
    measures = list(dict.fromkeys(("loss", common_measure(groups).name)))
    return curves(histories, measures, validated_on(runs))


NOTE = """\
Differences are paired by seed. If an interval includes 0, the difference may
be due to chance."""


def short_rows(groups: Sequence[Group], baseline: Group | None) -> list[tuple[str, ...]]:
    """Return a header, and each group's number of runs, mean, interval, difference and title.

    Columns without values are left out. The titles come last, because they may be long.
    """
    measure = common_measure(groups)
    titles = {
        "runs": "runs",
        measure.column.format("test", "final weights"): f"test {measure.short}",
        INTERVAL: INTERVAL,
        DIFFERENCE: "difference",
        "title": "settings (final weights)",
    }
    return aligned_rows(cells(groups, baseline), titles)


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Return `short_rows` as a table for a terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    lines = ["  ".join([*map(str.ljust, row, widths), row[-1]]) for row in rows]
    if any("(" in row[-2] for row in rows):
        lines += ["", NOTE]
    return "\n".join(lines)


# Characters that LaTeX would read as commands, or may lack, and how they are written.
LATEX = str.maketrans(
    {
        **{each: f"\\{each}" for each in "&%$#_{}"},
        **{each: f"${each}$" for each in "<>|"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "…": r"\ldots{}",
    }
)


def latex_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows, of which the first is a header, as a LaTeX table; it needs booktabs."""
    header, *lines = (" & ".join(map(latex_cell, row)) for row in rows)
    body = " \\\\\n".join(lines)
    columns = "l" * len(rows[0])
    return f"""\
\\begin{{tabular}}{{{columns}}}
\\toprule
{header} \\\\
\\midrule
{body} \\\\
\\bottomrule
\\end{{tabular}}
"""


def latex_cell(text: str) -> str:
    """Return text for LaTeX, with a minus in front of negative numbers."""
    return re.sub(r"(?<![\w.+-])-(?=\d)", "$-$", text.translate(LATEX))


def aligned_rows(
    rows: Sequence[Mapping[str, str]], titles: Mapping[str, str]
) -> list[tuple[str, ...]]:
    """Return a header and the rows' cells; `titles` maps their keys to the columns' titles.

    Columns without values are left out.
    """
    found = [(title, *(row[key] for row in rows)) for key, title in titles.items()]
    return list(zip(*(column for column in found if any(column[1:])), strict=True))


def table(groups: Sequence[Group], baseline: Group | None) -> str:
    """Return a Markdown table with a row for each group; accuracies are in percent.

    Columns without values are left out. If a group lacks a setting, its cell is empty.
    """
    rows = cells(groups, baseline)
    short = {key: short_name(key) for key in setting_keys(groups)}
    titles = {key: short.get(key, key) for key in rows[0] if key not in ("runs", "title")}
    found = aligned_rows(rows, titles)
    header, *lines = (f"| {' | '.join(map(markdown_cell, row))} |" for row in found)
    return "\n".join([header, "| --- " * len(found[0]) + "|", *lines])
