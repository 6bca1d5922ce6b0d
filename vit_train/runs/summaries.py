"""Kept runs: their summaries and curves, in groups that differ in their seeds alone."""

import csv
import io
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vit_train.config import default_settings, is_incidental
from vit_train.files.plain import Refused, flatten
from vit_train.files.reading import read_json, read_text
from vit_train.report.metrics_csv import CSV_BYTES
from vit_train.text import printable

logger = logging.getLogger(__name__)
# What older runs' summaries call otherwise.
RENAMED = {"train.label_smoothing": "task.label_smoothing"}


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
        """What the runs' metrics.csv say in their last row; nothing if one of them is missing."""
        curves = [run.get("curve") for run in self.runs]
        return [curve[-1][column] for curve in curves if curve] if all(curves) else []

    @property
    def label(self) -> str:
        return self.label_without()

    def label_without(self, *left_out: str) -> str:
        """What tells this group from the others, apart from these settings."""
        others = {key: value for key, value in self.settings.items() if key not in left_out}
        settings = [(key, others[key]) for key in self.telling if key in others]
        if not settings:
            return str(self.runs[0]["config"]["model"]["name"])
        more = ["…"] if len(others) > len(settings) else []  # they differ in more than this
        return ", ".join([*(f"{shortened(key)}={value}" for key, value in settings), *more])


def shortened(key: str) -> str:
    """model.positions → positions; a `name` keeps its group: model.name → model."""
    group, _, last = key.rpartition(".")
    return group if last == "name" else last


def read_summaries(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Every finished summary.json in these folders and files; ValueError if there is none."""
    summaries = []
    for path in paths:
        if not path.exists():
            raise ValueError(f"there is no {path}")
        for file in sorted(path.rglob("*.json")) if path.is_dir() else [path]:
            summary = read_summary(file, meant=file == path or file.name == "summary.json")
            if summary is not None:
                summaries.append(summary)
    if not summaries:
        raise ValueError(f"no finished run's summary.json in {', '.join(map(str, paths))}")
    return summaries


def read_summary(file: Path, meant: bool) -> dict[str, Any] | None:
    """With its run's curve; None for a run that is not finished, and for other files.

    A damaged file is an error if it is `meant`, and may be of another kind otherwise.
    """
    try:
        content = read_json(file)
    except Refused:
        if meant:
            raise
        logger.warning(printable(f"left out, as it is no JSON: {file}"))
        return None
    if not isinstance(content, dict) or "status" not in content:
        return None
    if content["status"] != "finished":
        logger.warning(printable(f"left out, as it is {content['status']}: {file}"))
        return None
    return content | {"file": str(file), "curve": read_curve(file)}


def read_curve(summary: Path) -> list[dict[str, float]]:
    """A row an epoch of the metrics.csv beside a summary.json, or of X.csv beside X.json."""
    own = summary.name == "summary.json"
    path = summary.with_name("metrics.csv") if own else summary.with_suffix(".csv")
    if not path.is_file():
        return []
    rows = csv.DictReader(io.StringIO(read_text(path, CSV_BYTES), newline=""))
    try:
        return [{key: float(value) for key, value in row.items()} for row in rows]
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
    own = {RENAMED.get(key, key): value for key, value in flatten(config)}
    settings = dict(flatten(default_settings(config))) | own
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
