"""`vit-results`: the summaries of many runs as tables and plots."""

import os
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from vit_train.base.reading import require_config
from vit_train.base.text import csv_text, printable
from vit_train.base.writing import write_text
from vit_train.evaluate.differences import find_baseline, note_on_short_runs, on_same_images
from vit_train.evaluate.summaries import Group, group_runs, read_summaries, validated_on
from vit_train.evaluate.table import (
    LOSS,
    common_measure,
    interval,
    run_rows,
    setting_keys,
    short_table,
    table,
)
from vit_train.figures.charts import Figure, curves, dots, save


def read_groups(paths: Sequence[Path]) -> list[Group]:
    """Return the finished runs at these paths, grouped by their settings.

    Raise ValueError, naming the file, if a summary lacks a number that tables or plots need.
    """
    runs = read_summaries(paths)
    for run in runs:
        try:
            require_config(run["config"], "its config")
            for group in (*group_runs([run]), Group({}, [run, run])):  # alone, and with a spread
                table([group], group)
                run_rows([group])
            on_same_images(run, run, "test")
        except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
            raise ValueError(f"{run['file']} was not written by vit-train") from error
    return group_runs(runs)


def gather_results(
    paths: Sequence[Path], out: Path | None, baseline: str | None
) -> tuple[str, Path]:
    """Write results.md, results.csv and the plots into a folder.

    Return a table for the terminal, and the folder. The folder is `out` or, if it is None, the
    result of `folder_beside`. Compare groups with the group that has the settings `baseline`; None
    means the first group.
    """
    groups = read_groups(paths)
    measure = common_measure(groups)
    if is_search(groups):  # the best first
        groups.sort(
            key=lambda group: mean(group.values("best_val", measure.name) or [0]),
            reverse=measure is not LOSS,
        )
    first = find_baseline(groups, baseline) if len(groups) > 1 or baseline else None
    out = out or folder_beside(paths)
    out.mkdir(parents=True, exist_ok=True)
    note = note_on_short_runs(groups)
    rows = run_rows(groups)
    write_text(out / "results.md", f"{table(groups, first)}{note}\n")
    csv = csv_text([rows[0], *(row.values() for row in rows)])
    write_text(out / "results.csv", printable(csv, "\r\n"))
    (out / "curves.png").unlink(missing_ok=True)  # an earlier one may belong to other runs
    for name, figure in plots(groups).items():
        save(figure, out / name)
    return short_table(groups, first) + note, out


def folder_beside(paths: Sequence[Path]) -> Path:
    """Return the deepest folder that contains all paths; of a single folder, the folder itself."""
    if len(paths) == 1 and paths[0].is_dir():
        return paths[0]
    return Path(os.path.relpath(os.path.commonpath([path.parent.resolve() for path in paths])))


def plots(groups: Sequence[Group]) -> dict[str, Figure]:
    """Return the plots by file name.

    results.png shows the final results. curves.png shows the training curves, if every run has a
    metrics.csv.
    """
    measure = common_measure(groups)
    rows = []
    for group in groups:
        final = measure.final(group)
        points = [measure.scale * value for value in final]
        rows.append((group.label(), points, interval(group), measure.text(final)))
    figures = {"results.png": dots(rows, measure.title)}
    runs = [run for group in groups for run in group.runs]
    if all(run["curve"] for run in runs):
        histories = [(group.label(), [run["curve"] for run in group.runs]) for group in groups]
        measures = list(dict.fromkeys(("loss", measure.name)))
        figures["curves.png"] = curves(histories, measures, validated_on(runs))
    return figures


def is_search(groups: Sequence[Group]) -> bool:
    """Return True if at least two settings have five different values or more, all of them floats.

    Such settings were probably chosen by a search.
    """
    keys = setting_keys(groups)
    values = ({group.settings.get(key) for group in groups} - {None} for key in keys)
    return sum(len(each) >= 5 and set(map(type, each)) == {float} for each in values) > 1
