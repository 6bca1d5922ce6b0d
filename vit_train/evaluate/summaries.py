"""Summaries and curves of finished runs, grouped by all settings except seed and fold."""

import csv
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit_train.base.log import logger
from vit_train.base.reading import Refused, as_word, flatten, read_json
from vit_train.base.text import printable, shortened
from vit_train.config.run import declared_by, default_settings
from vit_train.trained.folder import SUMMARY, resume_command

# An object of a JSON file, such as a run's summary.
Json = dict[str, Any]
# Settings in which repetitions of a run may differ.
REPEATED = ("seed", "data.cv_fold")


@dataclass
class Group:
    """Runs that differ only in seed or cross-validation fold, one for each combination."""

    settings: Json
    runs: list[Json]
    # The fewest settings that distinguish this group from the others.
    label_keys: Sequence[str] = ()

    def values(self, *path: str) -> list[Any]:
        """Return the value at `path` in each run's summary; leave out runs without a value."""
        found = [value_at(run, *path) for run in self.runs]
        return [each for each in found if each is not None]

    @property
    def stages(self) -> list[Json]:
        """Return the stages of all runs, each with a commit and a machine.

        A run has several stages if it was resumed with another commit or on another machine.
        """
        return [each for run in self.runs for each in (*run.get("earlier", ()), run)]

    @property
    def folds(self) -> str:
        """Return the folds of cross-validation, such as "0, 1, 2 of 5"; "" if there are none."""
        present = sorted({int(fold) for fold in self.values("config", "data", "cv_fold")})
        total = self.values("config", "data", "cv_folds")
        return f"{', '.join(map(str, present))} of {total[0]}" if present else ""

    def last_epochs(self, column: str) -> list[float]:
        """Return the column's last value in each run's metrics.csv; [] if any run lacks it."""
        rows = [(run.get("curve") or [{}])[-1] for run in self.runs]
        return [row[column] for row in rows] if all(column in row for row in rows) else []

    @property
    def title(self) -> str:
        """Return the label, after the names of the runs if they have any."""
        names = dict.fromkeys(self.values("config", "name"))
        return ": ".join(filter(None, (", ".join(map(str, names)), self.label())))

    def label(self) -> str:
        """Return the settings that distinguish this group from others: "model=cnn, depth=6"."""
        label = ", ".join(
            f"{short_name(key)}={short_value(self.settings[key])}"
            for key in self.label_keys
            if key in self.settings
        )
        # More settings differ between the groups than the label has.
        more = ", …" if self.settings.keys() - self.label_keys else ""
        return (label or str(self.runs[0]["config"]["model"]["name"])) + more


def value_at(summary: Json, *path: str) -> Any:
    """Return the value at `path` in a summary, or None if there is none."""
    found: Any = summary
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def seed_and_fold(run: Json) -> tuple[Any, Any]:
    """Return a run's seed and cross-validation fold, by which runs of two groups are paired."""
    return run["config"]["seed"], run["config"]["data"].get("cv_fold")


def short_name(key: str) -> str:
    """Return a key's short name: "depth" for "model.depth", but "model" for "model.name"."""
    group, _, last = key.rpartition(".")
    return group if last == "name" else last


def short_value(value: Any) -> str:
    """Return a setting's value as on the command line, shortened to fit into a table.

    Long floats, which a search often chooses, are rounded to three significant digits.
    """
    is_long = isinstance(value, float) and len(str(value)) > 8
    return f"{value:.3g}" if is_long else shortened(as_word(value), 60)


def read_summaries(paths: Sequence[Path]) -> list[Json]:
    """Return the summaries of the finished runs in these folders and files, without duplicates.

    Raise ValueError if a path does not exist, or if the paths contain no finished run.
    """
    summaries: dict[Path, Json] = {}
    for path in paths:
        if not path.exists():
            raise ValueError(f"{path} does not exist")
        for file in sorted(path.rglob("*.json")) if path.is_dir() else [path]:
            summary = read_summary(file, required=file == path or file.name == SUMMARY)
            if summary is not None:
                summaries.setdefault(file.resolve(), summary)
    if not summaries:
        raise ValueError(f"found no {SUMMARY} of a finished run in {', '.join(map(str, paths))}")
    return list(summaries.values())


def read_summary(file: Path, required: bool) -> Json | None:
    """Return a finished run's summary and curve; None for unfinished runs and other files.

    Raise Refused or OSError if a `required` file cannot be read; skip any other unreadable file.
    """
    try:
        content = read_json(file)
    except (Refused, OSError) as error:
        if required:
            raise
        logger.warning(printable(f"skipped: {error}"))
        return None
    needed = {"status"} if required else {"status", "config"}
    if not isinstance(content, dict) or not needed <= content.keys():
        return None
    if content["status"] != "finished":
        words = f"left out ({content['status']}): {file.parent}"
        if content["status"] != "diverged" and file.name == SUMMARY:
            words += f". Unless it is still training, finish it with: {resume_command(file.parent)}"
        logger.warning(printable(words))
        return None
    return content | {
        "file": str(file),
        "written": file.stat().st_mtime,
        "curve": read_curve(file),
    }


def read_curve(summary: Path) -> list[dict[str, float]]:
    """Read the metrics.csv beside a summary.json, or X.csv beside X.json: one row per epoch.

    Return [] if the CSV file does not exist; raise ValueError if it is damaged.
    """
    path = summary.with_name("metrics.csv" if summary.name == SUMMARY else f"{summary.stem}.csv")
    if not path.is_file():
        return []
    try:
        rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
        curve = [{key: float(value) for key, value in row.items()} for row in rows]
    except (ValueError, TypeError, AttributeError, csv.Error) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if curve and "images_seen" not in curve[0]:
        raise ValueError(f"{path} is damaged: it has no column images_seen")
    return curve


def validated_on(summaries: Sequence[Json]) -> str:
    """Return the name of the images on which the validation curves were measured."""
    on_test = all(summary.get("selected_on") == "test" for summary in summaries)
    return "test set, each epoch" if on_test else "validation"


def group_runs(summaries: Sequence[Json]) -> list[Group]:
    """Group and sort runs by the settings that differ between them and can change a result.

    Runs that differ only in seed or fold are in one group.
    """
    flat = [settings_of(summary) for summary in summaries]
    differing = [
        key
        for key in dict.fromkeys(key for settings in flat for key in settings)
        if key not in REPEATED
        and len({spelled(settings[key]) for settings in flat if key in settings}) > 1
    ]
    label_keys = distinguishing_keys(flat, differing)
    groups: dict[tuple[str, ...], Group] = {}
    for settings, summary in zip(flat, summaries, strict=True):
        own = {key: settings[key] for key in differing if key in settings}
        group = groups.setdefault(values_of(settings, differing), Group(own, [], label_keys))
        group.runs.append(summary)
    for group in groups.values():
        group.runs = newest_of_each(group.runs)
    return sorted(
        groups.values(),
        key=lambda group: [numbers_first(group.settings.get(key)) for key in differing],
    )


def distinguishing_keys(flat: Sequence[Json], keys: Sequence[str]) -> list[str]:
    """Return `keys` without those that are not needed to tell the groups apart.

    Keys that end with ".name" always stay.
    """

    def count(chosen: Sequence[str]) -> int:
        return len({values_of(settings, chosen) for settings in flat})

    chosen = list(keys)
    for key in reversed(keys):
        others = [each for each in chosen if each != key]
        if not key.endswith(".name") and count(others) == count(keys):
            chosen = others
    return chosen


def settings_of(summary: Json) -> Json:
    """Return all settings that may have affected the result, by dotted key.

    Settings that were added to vit-train after the run get their defaults. `precision` is the
    precision that the run used or, if resuming changed it, all precisions in order.

    For a run that extends an earlier run, `extend` is the earlier run's number of epochs and recipe
    instead of its folder, because folders differ by seed. `code` has a hash and the names of the
    files of the user's own code, or is None.
    """
    config = summary["config"]
    settings = default_settings(config, needed=()) | dict(flatten(config))
    stages = (*summary.get("earlier", ()), summary)
    used = dict.fromkeys(str(each["precision"]) for each in stages if "precision" in each)
    settings["precision"] = ", then ".join(used) or settings["precision"]
    settings["fork"] = settings["fork"] != "null"
    if summary.get("extends"):
        earlier = summary["extends"][-1]
        settings["extend"] = f"{earlier['epochs']} epochs of {earlier['recipe']}"
    says = declared_by(config)
    known = {
        key: value
        for key, value in settings.items()
        if says.get(key, {}).get("alters") not in ("nothing", "rounding")
    }
    # With train.minutes, the speed determines the epochs, unless a run extends or forks another.
    if isinstance(known.get("train.minutes"), int | float) and not summary.get("extends"):
        known.pop("train.epochs")
    mark = summary.get("fingerprint")
    if mark and settings.get("data.name") in ("folder", "table"):
        root = settings["data.root"]
        # The images may have changed between two runs.
        known.pop("data.file", None)
        if known.get("data.decisions", "null") != "null":  # the fingerprint covers its content
            known["data.decisions"] = True
        known["data.root"] = f"{shortened(Path(root).name or root, 30)} ({mark})"
    code = summary.get("code") or {}
    mark = hashlib.sha256(repr(sorted(code.items())).encode()).hexdigest()[:8]
    known["code"] = f"{mark} {' '.join(code)}" if code else None
    return known


def newest_of_each(runs: Sequence[Json]) -> list[Json]:
    """Return the newest run of each seed and fold, sorted by seed and fold.

    Among runs of one day, the one whose file was written last is the newest. Older runs are left
    out, because counting a seed twice would make the standard deviation too small.
    """
    newest: dict[tuple[Any, Any], Json] = {}
    for run in sorted(runs, key=lambda run: (str(run.get("date", "")), run.get("written", 0))):
        place = seed_and_fold(run)
        if place in newest:
            logger.warning(
                printable(
                    f"skipped {newest[place]['file']}: {run['file']} is newer and has the same seed"
                )
            )
        newest[place] = run
    return [newest[place] for place in sorted(newest, key=lambda each: [*map(numbers_first, each)])]


def values_of(settings: Json, keys: Sequence[str]) -> tuple[str, ...]:
    return tuple(spelled(settings.get(key, "absent")) for key in keys)


def spelled(value: Any) -> str:
    """Return a setting's value as text; 1.0 and 1 give the same text."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def numbers_first(value: Any) -> tuple[bool, float, str]:
    """Return a sort key that puts numbers first, in order of size, and then other values."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return (not number, value if number else 0, str(value))
