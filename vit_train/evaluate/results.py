"""`vit-results`: the summaries of many runs as tables and curves."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise, zip_longest
from pathlib import Path
from statistics import mean, stdev

from vit_train.base.reading import require_config
from vit_train.base.text import csv_text, markdown_cell, printable
from vit_train.base.writing import write_text
from vit_train.evaluate.differences import difference, find_baseline, on_same_images
from vit_train.evaluate.summaries import (
    Group,
    Json,
    group_runs,
    read_summaries,
    seed_and_fold,
    short_name,
    short_value,
    validated_on,
    value_at,
)
from vit_train.figures.charts import Figure, curves, save
from vit_train.figures.measures import BUILT_IN
from vit_train.loop.metrics import Classification, interval_of_mean, is_uneven
from vit_train.loop.tagging import Tagging


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
    histories = [(group.label(), [run["curve"] for run in group.runs]) for group in groups]
    measures = list(dict.fromkeys(("loss", common_measure(groups).name)))
    return curves(histories, measures, validated_on(runs))


@dataclass(frozen=True)
class Measure:
    """A measure for comparing runs: its name in a summary, its titles, and its format."""

    name: str
    short: str
    # The title of a column, with places for the split and the weights or epoch.
    column: str
    scale: float
    digits: int

    def text(self, values: Sequence[float]) -> str:
        """Format the mean of the runs' values and, for several runs, ± their standard deviation."""
        numbers = [each(values) for each, least in ((mean, 1), (stdev, 2)) if len(values) >= least]
        return " ± ".join(f"{self.scale * number:.{self.digits}f}" for number in numbers)


INTERVAL = "95 % interval"
DIFFERENCE = "difference (95 % interval)"
NUMBER = Measure("", "", "", 1, 4)
ACCURACY = Measure("acc", "accuracy, %", "{} accuracy, {} (%)", 100, 2)
MAP = Measure("map", "mAP, %", "{} mean average precision, {} (%)", 100, 2)
LOSS = Measure("loss", "loss", "{} loss, {}", 1, 4)


def common_measure(groups: Sequence[Group]) -> Measure:
    """Return ACCURACY for classifiers, MAP for task=tags and LOSS for others.

    Raise ValueError if the runs have different measures.
    """
    first, *others = {
        next((each for each in (ACCURACY, MAP) if each.name in run["test"]["final"]), LOSS)
        for group in groups
        for run in group.runs
    }
    if others:
        raise ValueError(
            "these runs have different measures (accuracy, mAP or loss): compare them separately"
        )
    return first


def interval(group: Group) -> Sequence[float] | None:
    """Return the 95 % interval of a run's test accuracy or mAP, or of a mean accuracy.

    Return None for runs without accuracy and mAP, for the mean mAP of several runs, and for several
    folds: folds share most of their training images, so an interval from their standard deviation
    would be too narrow.
    """
    accuracies = group.values("test", "final", "acc")
    if len(group.runs) == 1:
        final = group.runs[0]["test"]["final"]
        found: Sequence[float] | None = final.get("map_interval_95", final.get("acc_interval_95"))
        return found
    if group.folds or not accuracies:
        return None
    return interval_of_mean(accuracies, int(min(group.values("test", "final", "count"))))


def interval_cell(group: Group) -> str:
    found = interval(group)
    return f"{100 * found[0]:.2f} to {100 * found[1]:.2f}" if found else ""


def compared(group: Group, baseline: Group | None, measure: Measure) -> tuple[str, Sequence[float]]:
    """Return why there is no difference to the baseline, or ""; and the mean difference if any.

    The ends of its 95 % interval follow, except for folds of cross-validation, for the reason given
    in `interval`.
    """
    if baseline is None:
        return "", ()
    if group is baseline:
        return "baseline", ()
    found = difference(group, baseline, "test", "final", measure.name)
    if found is None:
        return "other test images", ()
    if not found.values:
        return "no seed in common", ()
    ends = None if group.folds else found.interval
    return "", (mean(found.values), *(ends or ()))


def difference_cell(group: Group, baseline: Group | None, measure: Measure) -> str:
    """Format what `compared` returns."""
    reason, found = compared(group, baseline, measure)
    number, *ends = [f"{measure.scale * each:+.{measure.digits}f}" for each in found] or [reason]
    return f"{number} ({' to '.join(ends)})" if ends else number


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


def setting_keys(groups: Sequence[Group]) -> list[str]:
    """Return the keys of the settings in which any of the groups differ."""
    return list(dict.fromkeys(key for group in groups for key in group.settings))


def own_measures(groups: Sequence[Group]) -> list[str]:
    """Return the names of the user's own measures (NUMBERS) in any run's test results."""
    known = {each.name for kind in (Classification, Tagging) for each in fields(kind)}
    results = [run["test"]["final"] for group in groups for run in group.runs]
    names = (name for each in results for name, value in each.items() if type(value) is float)
    return [name for name in dict.fromkeys(names) if name not in known | BUILT_IN]


def group_rows(groups: Sequence[Group], baseline: Group | None) -> list[Json]:
    """Return the rows of results.csv by column: each group's settings and results, not rounded.

    Differences are as in `compared`. Cells without a value are None.
    """
    measure = common_measure(groups)
    keys = setting_keys(groups)
    own = own_measures(groups)
    return [
        {
            "name": each_once(group.values("config", "name")),
            **{key: group.settings.get(key, "") for key in keys},
            "runs": len(group.runs),
            **spread({"test_final": group.values("test", "final", measure.name)}),
            **bounds_in("test_final_low test_final_high", interval(group)),
            **bounds_in(
                "difference difference_low difference_high", compared(group, baseline, measure)[1]
            ),
            **spread({name: group.values("test", "final", name) for name in own}),
            "images_seen": mean(group.values("images_seen")),
            "seconds": mean(group.values("seconds")),
        }
        for group in groups
    ]


def spread(values: Mapping[str, Sequence[float]]) -> Json:
    """Return the mean and standard deviation of each measure's values, by column."""
    return {
        f"{name}_{kind}": function(each) if len(each) >= least else None
        for name, each in values.items()
        for kind, function, least in (("mean", mean, 1), ("std", stdev, 2))
    }


def bounds_in(columns: str, values: Sequence[float] | None) -> Json:
    """Return the values by column; None for columns without a value."""
    return dict(zip_longest(columns.split(), values or ()))


def run_rows(groups: Sequence[Group]) -> list[Json]:
    """Return the rows of runs.csv by column: the settings and results of each run."""
    measure = common_measure(groups)
    keys = setting_keys(groups)
    return [
        {
            "name": value_at(run, "config", "name"),
            "notes": value_at(run, "config", "notes"),
            **{key: group.settings.get(key, "") for key in keys},
            **dict(zip(("seed", "data.cv_fold"), seed_and_fold(run), strict=True)),
            "test_final": run["test"]["final"].get(measure.name),
            "test_best": value_at(run, "test", "best", measure.name),
            "best_val": value_at(run, "best_val", measure.name),
            "images_seen": run.get("images_seen"),
            "seconds": run.get("seconds"),
            "summary": run["file"],
        }
        for group in groups
        for run in group.runs
    ]


def cells(groups: Sequence[Group], baseline: Group | None) -> list[dict[str, str]]:
    """Return each group's cells: its number of runs, settings by key, `columns`, and title."""
    measure = common_measure(groups)
    keys = setting_keys(groups)
    own = own_measures(groups)
    return [
        {
            "runs": str(len(group.runs)),
            **{key: short_value(group.settings.get(key, "")) for key in keys},
            **columns(group, baseline, measure, own),
            "title": printable(group.title),
        }
        for group in groups
    ]


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


def columns(
    group: Group, baseline: Group | None, measure: Measure, own: Sequence[str]
) -> dict[str, str]:
    """Return a group's cells, except those of its settings, by column title.

    `own` names the user's own measures.
    """
    on_test = {run["selected_on"] for run in group.runs} == {"test"}
    precision = each_once(str(stage.get("precision", "fp32")) for stage in group.stages)
    best = measure.text(group.values("test", "best", measure.name))
    best_val = "" if on_test else measure.text(group.values("best_val", measure.name))
    last_val = group.last_epochs(f"val_{measure.name}") if group.folds else []
    title = measure.column.format
    return {
        **{key: each_once(group.values("config", key)) for key in ("name", "notes")},
        "precision": precision if "precision" in group.settings or precision != "fp32" else "",
        "parameters": f"{group.runs[0]['parameters']:,}",
        "seeds": each_once(str(run["config"]["seed"]) for run in group.runs),
        "folds": group.folds,
        title("test", "final weights"): measure.text(group.values("test", "final", measure.name)),
        INTERVAL: interval_cell(group),
        DIFFERENCE: difference_cell(group, baseline, measure),
        title("test", "best epoch"): best + (" (selected on test)" if on_test else ""),
        title("validation", "best epoch"): best_val,
        title("validation", "last epoch, mean of folds"): measure.text(last_val),
        title("training", "last epoch"): measure.text(group.last_epochs(f"train_{measure.name}")),
        title("balanced test", "final weights"): measure.text(balanced_accuracies(group)),
        **{name: NUMBER.text(group.values("test", "final", name)) for name in own},
        "images seen": f"{mean(group.values('images_seen')):,.0f}",
        "training TFLOP": tflop(group),
        "minutes": minutes(group.values("seconds")),
        "minutes in steps": minutes(seconds_in_steps(group)),
        "cores": each_once(
            machine_fact(run, "threads") for run in group.runs if not machine_fact(run, "gpu")
        ),
        "commit": each_once(map(short_commit, group.stages)),
        "machine": each_once(machine_fact(stage, "gpu", "cpu") for stage in group.stages),
    }


def balanced_accuracies(group: Group) -> list[float]:
    """Return the final weights' balanced test accuracies; [] unless the classes are uneven."""
    counts = group.values("test", "final", "per_class_count")
    uneven = any(is_uneven(count) for count in counts if count)
    return group.values("test", "final", "balanced_acc") if uneven else []


def tflop(group: Group) -> str:
    """Return the mean training TFLOP of the runs; "" if any run's TFLOP is unknown."""
    values = group.values("training_tflop")
    if len(values) < len(group.runs):
        return ""
    return f"{mean(values):,.0f}" if mean(values) >= 100 else f"{mean(values):.3g}"


def seconds_in_steps(group: Group) -> list[float]:
    """Return the seconds that each run spent in training steps; [] if any curve lacks the speed.

    Reports, validation, the test, and the time before the first step do not count.
    """
    curves = [run.get("curve", []) for run in group.runs]
    if not all(curves):
        return []
    return [
        sum(
            (row["images_seen"] - before["images_seen"]) / row["images_per_s"]
            for before, row in pairwise([{"images_seen": 0.0}, *curve])
            if row["images_per_s"] > 0
        )
        for curve in curves
    ]


def minutes(seconds: Sequence[float]) -> str:
    """Return the lowest and the highest number of minutes of the runs; "" for no runs.

    A mean would hide that a machine was busy, or that one run had more cores.
    """
    return " to ".join(dict.fromkeys(f"{each(seconds) / 60:.1f}" for each in (min, max) if seconds))


def machine_fact(run: Json, *keys: str) -> str:
    """Return the first non-empty value of `keys` in a summary's "machine", or ""."""
    values = (value_at(run, "machine", key) for key in keys)
    return str(next(filter(None, values), ""))


def short_commit(run: Json) -> str:
    """Return the first 7 digits of a run's commit, plus "+changes" for uncommitted changes."""
    return re.sub(r"^(\w{7})\w*", r"\1", run.get("commit") or "")


def each_once(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, texts)))
