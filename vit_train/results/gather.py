"""`vit-results`: the summaries of many runs as tables and plots."""

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from vit_train.base.text import csv_text
from vit_train.base.writing import write_text
from vit_train.figures.charts import save
from vit_train.results.differences import find_baseline
from vit_train.results.plots import by_training_images, plots, searched
from vit_train.results.summaries import Group, group_runs, read_summaries
from vit_train.results.table import LOSS, common_measure, run_rows, short_table, table

PLOTS = ("results.png", "images.png", "curves.png", "settings.png")


def require_complete(run: dict[str, Any]) -> None:
    """Raise ValueError, naming the file, if a summary lacks a number that tables or plots need."""
    try:
        for group in (*group_runs([run]), Group({}, [run, run])):  # alone, and with a spread
            table([group], group)
            run_rows([group])
            by_training_images([group], common_measure([group]))
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{run['file']} was not written by vit-train") from error


def read_groups(paths: Sequence[Path]) -> list[Group]:
    """Return the finished runs at these paths, grouped by their settings.

    Raise ValueError if a summary is damaged.
    """
    runs = read_summaries(paths)
    for run in runs:
        require_complete(run)
    return group_runs(runs)


def gather(paths: Sequence[Path], out: Path | None, baseline: str | None) -> tuple[str, Path]:
    """Write results.md, results.csv and the plots into a folder.

    Return a table for the terminal, and the folder. The folder is `out` or, if it is None, the
    result of `folder_beside`. Compare groups with the group that has the settings `baseline`; None
    means the first group.
    """
    groups = read_groups(paths)
    if len(searched(groups)) > 1:  # a search: the best first
        measure = common_measure(groups)
        groups.sort(
            key=lambda group: mean(group.values("best_val", measure.name) or [0]),
            reverse=measure is not LOSS,
        )
    first = find_baseline(groups, baseline) if len(groups) > 1 or baseline else None
    out = out or folder_beside(paths)
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "results.md", table(groups, first) + "\n")
    write_text(out / "results.csv", csv_text(run_rows(groups)))
    for name in PLOTS:  # an earlier one may belong to other runs
        (out / name).unlink(missing_ok=True)
    for name, figure in plots(groups).items():
        save(figure, out / name)
    return short_table(groups, first), out


def folder_beside(paths: Sequence[Path]) -> Path:
    """Return the deepest folder that contains all paths; of a single folder, the folder itself."""
    if len(paths) == 1 and paths[0].is_dir():
        return paths[0]
    return Path(os.path.relpath(os.path.commonpath([path.parent.resolve() for path in paths])))
