"""What a table of runs holds: measures, intervals, differences and costs, as cells or numbers."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise, zip_longest
from statistics import mean, stdev

from vit_train.base.text import printable
from vit_train.evaluate.differences import difference
from vit_train.evaluate.summaries import (
    Group,
    Json,
    seed_and_fold,
    short_value,
    value_at,
)
from vit_train.figures.measures import BUILT_IN
from vit_train.loop.metrics import Classification, interval_of_mean, is_uneven
from vit_train.loop.tagging import Tagging


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
