"""The tables of `vit-results`."""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from vit_train.base.text import markdown_cell, printable
from vit_train.evaluate.differences import difference
from vit_train.evaluate.summaries import (
    Group,
    short_name,
    short_value,
)
from vit_train.figures.charts import Curve
from vit_train.loop.metrics import interval_of_mean, is_uneven


@dataclass(frozen=True)
class Measure:
    """A measure for comparing runs: its name in a summary, its titles, and its format."""

    name: str
    short: str
    title: str
    column: str
    scale: float
    digits: int

    def text(self, values: Sequence[float]) -> str:
        """Format the mean of the runs' values and, for several runs, ± their standard deviation."""
        numbers = [mean(values)] if values else []
        numbers += [stdev(values)] if len(values) > 1 else []
        return " ± ".join(f"{self.scale * number:.{self.digits}f}" for number in numbers)

    def final(self, group: Group) -> list[float]:
        """Return the test result of each run's final weights."""
        return [run["test"]["final"][self.name] for run in group.runs]


ACCURACY = Measure(
    "acc", "accuracy, %", "test accuracy of the final weights, %", "{} accuracy, {} (%)", 100, 2
)
MAP = Measure(
    "map", "mAP, %", "test mAP of the final weights, %", "{} mean average precision, {} (%)", 100, 2
)
LOSS = Measure("loss", "loss", "test loss of the final weights", "{} loss, {}", 1, 4)


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


def interval(group: Group) -> tuple[float, float] | None:
    """Return the 95 % interval of a run's test accuracy or mAP, or of a mean accuracy, in percent.

    Return None for runs without either, for the mean mAP of several runs, and for several folds:
    folds share most of their training images, so an interval from their standard deviation would be
    too narrow.
    """
    accuracy, count = group.values("test", "final", "acc"), group.values("test", "final", "count")
    final = group.runs[0]["test"]["final"]
    if len(group.runs) == 1:
        found = final.get("map_interval_95", final.get("acc_interval_95"))
    else:
        has_one = accuracy and not group.folds
        found = interval_of_mean(accuracy, int(min(count))) if has_one else None
    return found and (100 * found[0], 100 * found[1])


def ends(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else "{:.2f} to {:.2f}".format(*interval)


def compared(group: Group, baseline: Group | None, measure: Measure) -> tuple[str, str]:
    """Return two cells: the difference to the baseline, and the number of seeds needed.

    The second cell is the number of seeds needed to detect a difference of 1 point of accuracy (see
    `seeds_to_detect`). A cell without a value is "". For folds of cross-validation, the difference
    has no interval, for the reason given in `interval`. Runs tested on different images have none.
    """
    if group is baseline:
        return "baseline", ""
    if baseline is None:
        return "", ""
    found = difference(group, baseline, "test", "final", measure.name)
    if found is None:
        return "other test images", ""
    if not found.values:
        return "no seed in common", ""
    number = f"{{:+.{measure.digits}f}}".format
    text = number(measure.scale * mean(found.values))
    if found.interval is None or group.folds:
        return text, ""
    low, high = (number(measure.scale * end) for end in found.interval)
    seeds = found.seeds_to_detect(0.01) if measure is ACCURACY else None
    return f"{text} ({low} to {high})", f"{seeds or ''}"


# The width of a terminal in characters.
TERMINAL = 80
DIFFERENCES = """\
Differences are paired by seed. If an interval includes 0, the difference may
be due to chance; for accuracy, results.md lists the seeds to detect 1 point."""


def short_table(groups: Sequence[Group], baseline: Group | None) -> str:
    """Return a table for a terminal: each group's number of runs, mean, interval and difference."""
    measure = common_measure(groups)
    rows = [("test, final weights", "runs", measure.short, "95 % interval", "difference")]
    for group in groups:
        result, count = measure.text(measure.final(group)), str(len(group.runs))
        differs, _ = compared(group, baseline, measure)
        rows.append((printable(group.title), count, result, ends(interval(group)), differs))
    filled = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in filled]
    widths[0] = min(widths[0], TERMINAL - sum(width + 2 for width in widths[1:]))
    lines = []
    for label, *cells in zip(*filled, strict=True):
        first, *more = textwrap.wrap(label, widths[0])
        texts = (text.ljust(width) for text, width in zip([first, *cells], widths, strict=True))
        lines += ["  ".join(texts).rstrip(), *more]
    if any("(" in row[-1] for row in rows[1:]):
        lines += ["", DIFFERENCES]
    return "\n".join(lines)


def run_rows(groups: Sequence[Group]) -> list[list[Any]]:
    """Return the rows of results.csv: titles, then the settings and results of each run."""
    measure = common_measure(groups)
    keys = list(dict.fromkeys(key for group in groups for key in group.settings))
    titles = ["seed", "data.cv_fold", "test_final", "test_best", "best_val", "images_seen"]
    rows: list[list[Any]] = [["name", "notes", *keys, *titles, "seconds", "summary"]]
    for group in groups:
        for run in group.runs:
            best = run["test"].get("best"), run.get("best_val")  # None with data.val=none
            results = (run["test"]["final"], *(each or {} for each in best))
            rows.append(
                [
                    *(run["config"].get(key) for key in ("name", "notes")),
                    *(group.settings.get(key, "") for key in keys),
                    *Group.place(run),
                    *(each.get(measure.name) for each in results),
                    *(run.get("images_seen"), run.get("seconds"), run["file"]),
                ]
            )
    return rows


def table(groups: Sequence[Group], baseline: Group | None) -> str:
    """Return a Markdown table with a row for each group; accuracies are in percent.

    Columns without values are left out. If a group lacks a setting, its cell is empty.
    """
    measure = common_measure(groups)
    keys = list(dict.fromkeys(key for group in groups for key in group.settings))
    rows = [
        [(short_name(key), short_value(group.settings.get(key, ""))) for key in keys]
        + list(columns(group, baseline, measure).items())
        for group in groups
    ]
    filled = [column for column in zip(*rows, strict=True) if any(text for _, text in column)]
    cells = [(column[0][0], "---", *(text for _, text in column)) for column in filled]
    return "\n".join(
        f"| {' | '.join(map(markdown_cell, row))} |" for row in zip(*cells, strict=True)
    )


def columns(group: Group, baseline: Group | None, measure: Measure) -> dict[str, str]:
    """Return a group's cells, except those of its settings, by column title."""
    on_test = {run["selected_on"] for run in group.runs} == {"test"}
    precision = each_once(str(stage.get("precision", "fp32")) for stage in group.stages)
    best = measure.text(group.values("test", "best", measure.name))
    title, text = measure.column.format, measure.text
    differs, seeds = compared(group, baseline, measure)
    return {
        **{key: each_once(group.values("config", key)) for key in ("name", "notes")},
        "precision": "" if "precision" in group.settings or precision == "fp32" else precision,
        "parameters": f"{group.runs[0]['parameters']:,}",
        "seeds": each_once(str(run["config"]["seed"]) for run in group.runs),
        "folds": group.folds,
        title("test", "final weights"): text(measure.final(group)),
        "95 % interval": ends(interval(group)),
        "difference (95 % interval)": differs,
        "seeds to detect 1 point": seeds,
        title("test", "best epoch"): best + (" (selected on test)" if on_test else ""),
        title("validation", "best epoch"): (
            "" if on_test else text(group.values("best_val", measure.name))
        ),
        title("validation", "last epoch, mean of folds"): (
            text(group.last_epochs(f"val_{measure.name}")) if group.folds else ""
        ),
        title("training", "last epoch"): text(group.last_epochs(f"train_{measure.name}")),
        title("balanced test", "final weights"): text(balanced(group)),
        "images seen": f"{mean(group.values('images_seen')):,.0f}",
        "training TFLOP": tflop(group),
        "minutes": minutes(group.values("seconds")),
        "minutes in steps": minutes(seconds_in_steps(group)),
        "cores": each_once(
            machine(run, "threads") for run in group.runs if not machine(run, "gpu")
        ),
        "commit": each_once(map(short_commit, group.stages)),
        "machine": each_once(machine(stage, "gpu", "cpu") for stage in group.stages),
    }


def balanced(group: Group) -> list[float]:
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
    curves = [run.get("curve") or [{}] for run in group.runs]
    if not all({"images_seen", "images_per_s"} <= curve[-1].keys() for curve in curves):
        return []
    return list(map(time_in_steps, curves))


def time_in_steps(curve: Curve) -> float:
    """Return the seconds spent in training steps, from the images and speeds in a metrics.csv."""
    before = [0.0, *(row["images_seen"] for row in curve)]
    return sum(
        (row["images_seen"] - seen) / row["images_per_s"]
        for seen, row in zip(before, curve, strict=False)
        if row["images_per_s"] > 0
    )


def minutes(seconds: Sequence[float]) -> str:
    """Return the lowest and the highest number of minutes of the runs; "" for no runs.

    A mean would hide that a machine was busy, or that one run had more cores.
    """
    return " to ".join(dict.fromkeys(f"{each(seconds) / 60:.1f}" for each in (min, max) if seconds))


def machine(run: dict[str, Any], *keys: str) -> str:
    """Return the first non-empty value of `keys` in a summary's "machine", or ""."""
    facts = run.get("machine") or {}
    return next((str(facts[key]) for key in keys if facts.get(key)), "")


def short_commit(run: dict[str, Any]) -> str:
    """Return the first 7 digits of a run's commit, plus "+changes" for uncommitted changes."""
    digits, plus, changes = str(run.get("commit") or "").partition("+")
    return f"{digits[:7]}{plus}{changes}"


def each_once(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, texts)))
