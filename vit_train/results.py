"""`vit-results`: many runs' summaries as one Markdown table and one plot."""

import csv
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from matplotlib.figure import Figure

from vit_train.config import default_settings, is_incidental
from vit_train.engine.metrics import interval_of_mean
from vit_train.report.comparison import bars, curves
from vit_train.report.figures import any_letter
from vit_train.report.flat import flatten
from vit_train.report.printable import markdown_cell, printable

logger = logging.getLogger(__name__)


@dataclass
class Group:
    """Runs that differ in their seed alone, one of each."""

    settings: dict[str, Any]
    runs: list[dict[str, Any]] = field(default_factory=list)
    # Those of the settings that are enough to tell it from the other groups.
    telling: list[str] = field(default_factory=list)

    def values(self, *path: str) -> list[float]:
        """One number a run, from below `path` in its summary, where it has one."""
        found = []
        for run in self.runs:
            value: Any = run
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            if value is not None:
                found.append(value)
        return found

    def last_epochs(self, column: str) -> list[float]:
        """What the runs' metrics.csv say in their last row, those that are there."""
        return [run["curve"][-1][column] for run in self.runs if run.get("curve")]

    @property
    def label(self) -> str:
        settings = [(key, self.settings[key]) for key in self.telling if key in self.settings]
        if not settings:
            return str(self.runs[0]["config"]["model"]["name"])
        more = ["…"] if len(self.settings) > len(settings) else []  # they differ in more than this
        return ", ".join([*(f"{shortened(key)}={value}" for key, value in settings), *more])


def shortened(key: str) -> str:
    """model.positions → positions; a `name` keeps its group: model.name → model."""
    group, _, last = key.rpartition(".")
    return group if last == "name" else last


def read_summary(file: Path) -> dict[str, Any] | None:
    """With its run's curve; None for a run that is not finished, and for other files."""
    try:
        content = json.loads(file.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    if not isinstance(content, dict) or "status" not in content:
        return None
    if content["status"] != "finished":
        logger.warning(printable(f"left out, as it is {content['status']}: {file}"))
        return None
    content |= {"file": str(file), "curve": read_curve(file)}
    try:
        table(group_runs([content]))
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{file} is no summary that vit-train wrote") from error
    return content


def read_summaries(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Every finished summary.json in these folders and files; ValueError if there is none."""
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ValueError(f"there is no {path}")
        files += sorted(path.rglob("*.json")) if path.is_dir() else [path]
    summaries = [each for each in map(read_summary, files) if each is not None]
    if not summaries:
        raise ValueError(f"no finished run's summary.json in {', '.join(map(str, paths))}")
    return summaries


def read_curve(summary: Path) -> list[dict[str, float]]:
    """A row an epoch of the metrics.csv beside a summary.json, or of X.csv beside X.json."""
    own = summary.name == "summary.json"
    path = summary.with_name("metrics.csv") if own else summary.with_suffix(".csv")
    if not path.is_file():
        return []
    try:
        with path.open(newline="") as file:
            return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]
    except (ValueError, TypeError, AttributeError, csv.Error) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def group_runs(summaries: Sequence[dict[str, Any]]) -> list[Group]:
    """By what differs between them and can change a result, apart from the seed; sorted by it."""
    flat = [settings_of(summary) for summary in summaries]
    keys = list(dict.fromkeys(key for each in flat for key in each if key != "seed"))

    def differs(key: str) -> bool:
        present = {str(each[key]) for each in flat if key in each}
        return len(present) > 1

    differing = [key for key in keys if differs(key)]
    telling: list[str] = []
    for key in differing:
        if len(identities(flat, [*telling, key])) > len(identities(flat, telling)):
            telling.append(key)
    groups: dict[tuple[str, ...], Group] = {}
    for each, summary in zip(flat, summaries, strict=True):
        settings = {key: each[key] for key in differing if key in each}
        group = groups.setdefault(identity(each, differing), Group(settings, telling=telling))
        group.runs.append(summary)
    for group in groups.values():
        group.runs = one_a_seed(group.runs)
    return sorted(
        groups.values(), key=lambda group: [rank(group.settings.get(k)) for k in differing]
    )


def settings_of(summary: dict[str, Any]) -> dict[str, Any]:
    """All that may have had a part in the result, each by its dotted key.

    A setting that is younger than the run has its default; the precision is the one that was used.
    """
    config = {"task": {"name": "classify"}} | summary["config"]  # runs from before the tasks
    settings = dict(flatten(default_settings(config))) | dict(flatten(config))
    settings["precision"] = summary.get("precision", settings["precision"])
    images = {"data.root"} if settings.get("data.name") == "folder" else set()
    return {key: each for key, each in settings.items() if key in images or not is_incidental(key)}


def one_a_seed(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last run of each seed: the same one twice would make a spread look small."""
    last = {run["config"]["seed"]: run for run in runs}
    for run in runs:
        kept = last[run["config"]["seed"]]
        if run is not kept:
            logger.warning(printable(f"left out, as {kept['file']} repeats it: {run['file']}"))
    return list(last.values())


def identity(settings: dict[str, Any], keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(str(settings.get(key, "absent")) for key in keys)


def identities(flat: Sequence[dict[str, Any]], keys: Sequence[str]) -> set[tuple[str, ...]]:
    return {identity(each, keys) for each in flat}


def rank(value: Any) -> tuple[bool, float, str]:
    """Numbers by size, and before words."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return (not number, value if number else 0, str(value))


@dataclass(frozen=True)
class Measure:
    """What the runs are compared by, as it is called in a summary and as it is written here."""

    name: str
    title: str
    scale: float
    digits: int

    def text(self, values: Sequence[float]) -> str:
        """The mean over the runs, ± their standard deviation."""
        if not values:
            return ""
        spread = f" ± {self.scale * stdev(values):.{self.digits}f}" if len(values) > 1 else ""
        return f"{self.scale * mean(values):.{self.digits}f}{spread}"


ACCURACY = Measure("acc", "test accuracy of the final weights, %", 100, 2)
LOSS = Measure("loss", "test loss of the final weights", 1, 4)


def common_measure(groups: Sequence[Group]) -> Measure:
    """Accuracy, or the loss where no run has any; ValueError if only some have."""
    classify = {"acc" in run["test"]["final"] for group in groups for run in group.runs}
    if len(classify) > 1:
        raise ValueError("some of these runs classify and others do not: gather them apart")
    return ACCURACY if classify == {True} else LOSS


def interval(group: Group) -> str:
    """The 95 % interval of accuracy for the test images (of the mean, of several runs)."""
    accuracy, count = group.values("test", "final", "acc"), group.values("test", "final", "count")
    if not accuracy:
        return ""
    if len(accuracy) == 1:
        low, high = group.runs[0]["test"]["final"]["acc_interval_95"]
    else:
        low, high = interval_of_mean(accuracy, int(count[0]))
    return f"{100 * low:.2f} to {100 * high:.2f}"


def table(groups: Sequence[Group]) -> str:
    """Markdown; accuracies in per cent."""
    measure = common_measure(groups)
    keys = list(dict.fromkeys(key for group in groups for key in group.settings))
    header = [*map(shortened, keys), "parameters", "seeds"]
    unit = "" if measure is ACCURACY else " (loss)"
    columns = ["training, last epoch", "best epoch's val", "test, best epoch", "test, final"]
    header += [f"{column}{unit}" for column in columns]
    header += ["95 % interval", "images seen", "minutes"]
    rows = []
    for group in groups:
        selected = {run["selected_on"] for run in group.runs}
        note = " (selected on test)" if selected == {"test"} else ""
        rows.append(
            [
                *(str(group.settings.get(key, "")) for key in keys),
                f"{group.runs[0]['parameters']:,}",
                ", ".join(str(run["config"]["seed"]) for run in group.runs),
                measure.text(group.last_epochs(f"train_{measure.name}")),
                measure.text(group.values("best_val", measure.name)) + note,
                measure.text(group.values("test", "best", measure.name)) + note,
                measure.text(group.values("test", "final", measure.name)),
                interval(group),
                f"{mean(group.values('images_seen')):,.0f}",
                f"{mean(group.values('seconds')) / 60:.1f}",
            ]
        )
    filled = [place for place in range(len(header)) if any(row[place] for row in rows)]
    return "\n".join(
        f"| {' | '.join(markdown_cell(row[place]) for place in filled)} |"
        for row in (header, ["---"] * len(header), *rows)
    )


def plots(groups: Sequence[Group]) -> dict[str, Figure]:
    """By file name: how the runs ended and, where each has its metrics.csv, how they got there."""
    measure = common_measure(groups)
    ends = []
    for group in groups:
        values = group.values("test", "final", measure.name)
        points = [measure.scale * value for value in values]
        ends.append((group.label, points, measure.text(values)))
    figures = {"results.png": bars(ends, measure.title)}
    ways = [(group.label, [run["curve"] for run in group.runs]) for group in groups]
    if all(curve for _, runs in ways for curve in runs):
        names = ("loss", "acc") if measure is ACCURACY else ("loss",)
        figures["curves.png"] = curves(ways, names)
    return figures


def gather(paths: Sequence[Path], out: Path) -> str:
    """Write results.md, results.png and, where it can, curves.png into `out`; returns the table."""
    groups = group_runs(read_summaries(paths))
    text = table(groups)
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.md").write_text(text + "\n")
    with any_letter():
        for name, figure in plots(groups).items():
            figure.savefig(out / name)
    return text
