"""`seed=auto`: train two settings with one more seed after another, until one of them is better."""

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import mean

from vit_train.base.text import printable

AUTO = "seed=auto"


def run_until_decided(flags: argparse.Namespace, run: Callable[[], Path | None]) -> None:
    """Run a sweep of two settings with the seeds 0, 1, 2 and so on.

    `run` runs one sweep with these `flags`, and returns its folder, or None if a job failed or was
    stopped. Stop as well when a test of the validation results, paired by seed, decides which
    setting is better, or after LAST_LOOK seeds. Raise ValueError unless the sweep has exactly two
    settings.
    """
    from vit_train.results.differences import LAST_LOOK, difference
    from vit_train.results.gather import read_groups
    from vit_train.results.table import common_measure

    rest = [each for each in flags.overrides if each != AUTO]
    rest.append("hydra.sweep.subdir=seed_${seed}_${hydra.job.num}")
    for seed in range(LAST_LOOK):
        flags.overrides = [*rest, f"seed={seed}"]
        folder = run()
        if folder is None:
            return
        groups = read_groups([folder])
        if len(groups) != 2:
            raise ValueError(f"{AUTO} compares two settings, but this sweep has {len(groups)}")
        if not all(run["best_val"] for group in groups for run in group.runs):
            raise ValueError(f"{AUTO} needs validation results: choose data.val=split")
        measure = common_measure(groups)
        found = difference(groups[1], groups[0], "best_val", measure.name)
        print(
            printable(
                f"{groups[1].label()} minus {groups[0].label()}, {len(found.values)} seeds: "
                f"{measure.scale * mean(found.values):+.{measure.digits}f} in validation "
                f"{measure.short}: {'decided' if found.is_decided else 'not decided'}"
            )
        )
        if found.is_decided:
            return
        if seed == 0:  # further seeds go to the same folder
            rest.append(f"hydra.sweep.dir={folder}")
