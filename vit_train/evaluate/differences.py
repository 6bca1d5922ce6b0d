"""Differences between the results of two groups of runs, paired by seed and fold."""

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import mean, stdev

from vit_train.evaluate.summaries import (
    Group,
    Json,
    seed_and_fold,
    short_name,
    short_value,
    value_at,
)
from vit_train.loop.metrics import Interval, student_quantile

# A sequential test: after each seed from FIRST_LOOK to LAST_LOOK, a two-sided t-test at LEVEL. All
# looks together have a false-positive rate of at most 5 %, as a simulation in the tests shows
# (Pocock 1977: a level of 0.0120 for eight looks, if the variance is known).
FIRST_LOOK = 3
LAST_LOOK = 10
LEVEL = 0.0115


@dataclass(frozen=True)
class Difference:
    """Differences between two groups' results: one for each seed and fold that both groups have.

    Runs with the same seed have the same validation split and the same order of images, and
    often the same initial weights, so their results may vary together. Both runs of a pair are
    tested on the same images, so an interval covers the variation between seeds, not between test
    images.
    """

    values: Sequence[float]

    @property
    def interval(self) -> Interval | None:
        """Return the 95 % interval of the mean (Student's t); None for fewer than two values.

        Also return None if all values are equal: an interval without width would look like a proof.
        """
        count = len(self.values)
        if count < 2 or not self.error:
            return None
        half = student_quantile(count - 1) * self.error
        return mean(self.values) - half, mean(self.values) + half

    @property
    def error(self) -> float:
        """Return the standard error of the mean difference."""
        return stdev(self.values) / math.sqrt(len(self.values))

    @property
    def is_significant(self) -> bool:
        """Return True if the mean difference is significant.

        The threshold is strict, so that the test may be repeated after each new seed. With fewer
        than FIRST_LOOK values, return False.
        """
        count = len(self.values)
        if count < FIRST_LOOK:
            return False
        # A few coarse accuracies may be equal by chance, so a spread of 0 proves nothing.
        return abs(mean(self.values)) > student_quantile(count - 1, 1 - LEVEL) * self.error > 0


def difference(group: Group, baseline: Group, *path: str) -> Difference | None:
    """Return the differences (group − baseline) of the value at `path` in the runs' summaries.

    Return None if the two runs of a pair were evaluated on different images.
    """
    split = "test" if path[0] == "test" else "val"
    others = {seed_and_fold(run): run for run in baseline.runs}
    pairs = [
        (run, others[seed_and_fold(run)]) for run in group.runs if seed_and_fold(run) in others
    ]
    if not all(on_same_images(*pair, split) for pair in pairs):
        return None
    return Difference([value_at(run, *path) - value_at(other, *path) for run, other in pairs])


def on_same_images(run: Json, other: Json, split: str) -> bool:
    """Return True if two runs were evaluated on the same images of the split "val" or "test".

    The images must come from the same data set, with the same number of test images in each class,
    and must have the same names and labels. Early summaries have no checksum of names and labels,
    so these are not compared. The sizes of the images may differ.
    """
    checksums = {value_at(each, "evaluated_images", split) for each in (run, other)} - {None}
    facts = [
        (each["config"]["data"]["name"], final.get("per_class_count"), final.get("count"))
        for each in (run, other)
        for final in [each["test"]["final"]]
    ]
    return len(checksums) < 2 and facts[0] == facts[1]


def find_baseline(groups: Sequence[Group], words: str | None) -> Group:
    """Return the group with the settings in `words`, such as "positions=none,depth=6".

    Each setting is given by its full key or its short name; 1e-4 also stands for 0.0001. Return the
    first group if `words` is None. Raise ValueError unless exactly one group matches.
    """
    if words is None:
        return groups[0]
    # Commas within lists do not separate settings.
    wanted = {plain_number(each.strip()) for each in re.split(r",(?![^\[]*\])", words)}
    found = [group for group in groups if wanted <= set(map(plain_number, spellings(group)))]
    if len(found) != 1:
        labels = "; ".join(group.label() for group in groups)
        raise ValueError(
            f"--baseline={words} matches {len(found)} rows, but must match one of: {labels}"
        )
    return found[0]


def spellings(group: Group) -> set[str]:
    found = {f"name={each}" for each in group.values("config", "name")}
    for key, value in group.settings.items():
        found |= {f"{name}={short_value(value)}" for name in (key, short_name(key))}
    return found


def plain_number(setting: str) -> str:
    """Return a setting such as "lr=1e-4" with its number as Python writes it: "lr=0.0001"."""
    key, _, value = setting.partition("=")
    with suppress(ValueError):  # not a number
        setting = f"{key}={float(value)}"
    return setting
