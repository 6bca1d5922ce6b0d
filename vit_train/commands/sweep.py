"""`seed=auto`: compare two combinations of settings with as many seeds as a test needs."""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from statistics import mean

from hydra.core.override_parser.overrides_parser import OverridesParser

from vit_train.base.text import counted, printable
from vit_train.commands.command import AUTO, quoted

EXACTLY_TWO = (
    f"{AUTO} compares two combinations of settings, but this sweep has {{}}: give exactly one "
    "setting two values"
)


def run_until_decided(
    flags: argparse.Namespace, run: Callable[[argparse.Namespace], Path | None]
) -> None:
    """Train two combinations of settings with the seeds 0, 1, 2 and so on, until a test decides.

    The test compares validation results, paired by seed. Stop without a decision after LAST_LOOK
    seeds, or if a job fails or is stopped. `run` runs the sweep that `flags` describe, and returns
    the sweep's folder, or None if a job failed or was stopped. Raise ValueError unless the sweep
    has exactly two combinations of settings, which have the same validation images.
    """
    from vit_train.evaluate.differences import LAST_LOOK, difference
    from vit_train.evaluate.gather import read_groups
    from vit_train.evaluate.table import common_measure

    rest = [each for each in flags.overrides if each != AUTO]
    combinations = math.prod(
        len(list(each.sweep_string_iterator()))
        for each in OverridesParser.create().parse_overrides(rest)
        if each.is_sweep_override()
    )
    keys = {each.partition("=")[0] for each in rest}
    if "hydra/launcher" in keys:
        raise ValueError(f"{AUTO} trains one run after the other: leave out hydra/launcher=")
    # An experiment may have values to sweep over.
    if combinations != 2 and "experiment" not in keys:
        raise ValueError(EXACTLY_TWO.format(combinations))
    rest.append("hydra.sweep.subdir=seed_${seed}_${hydra.job.num}")
    for seed in range(LAST_LOOK):
        flags.overrides = [*rest, f"seed={seed}"]
        folder = run(flags)
        if folder is None:
            return
        groups = read_groups([folder])
        if len(groups) != 2:
            raise ValueError(EXACTLY_TWO.format(len(groups)))
        measure = common_measure(groups)
        found = difference(groups[1], groups[0], "best_val", measure.name)
        if found is None:
            raise ValueError(
                f"{AUTO} compares results on the same validation images, but those of these "
                "settings differ"
            )
        size = f"{measure.scale * mean(found.values):+.{measure.digits}f}"
        both = printable(f"{groups[1].label()} minus {groups[0].label()}")
        text = f"{both}, {counted(len(found.values), 'seed')}: {size} in validation {measure.short}"
        if found.is_significant:
            return print(f"{text}: significant")
        print(f"{text}: not significant")
        if seed == 0:  # further seeds go to the same folder
            rest.append(f"hydra.sweep.dir={quoted(folder)}")
    print(f"no significant difference after {LAST_LOOK} seeds: the two may be equally good")
