"""The jobs of a sweep, and `seed=auto`, which adds seeds until two settings can be told apart.

A sweep continues after a failed job, and lists the failed jobs at its end.
"""

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import TextIO

from hydra._internal.utils import _run_hydra
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig

from vit_train.base.text import counted, printable
from vit_train.commands.command import AUTO, flag_parser, import_own_parts, is_named, quoted
from vit_train.commands.errors import explain, lines_above, short_errors
from vit_train.config.run import CONF_DIR
from vit_train.trained.folder import Outcome, for_shell, removed_if_empty, resume_command


class Sweep:
    """Run the jobs of a sweep in turn; record which jobs stopped early or failed.

    `job` starts a run, given the composed config, Hydra's settings and the run's folder.
    """

    def __init__(self, job: Callable[[DictConfig, HydraConf, Path], Outcome]) -> None:
        self.job = job
        self.jobs = 0
        self.folder = ""
        self.argv = sys.argv
        self.stopped: list[Path] = []
        self.failures: list[str] = []

    def main(self, flags: argparse.Namespace) -> None:
        """Run all jobs and report on them; exit with status 1 if any failed."""
        try:
            if AUTO in flags.overrides:
                flags.multirun = True
                run_until_decided(flags, self.launch)
            else:
                self.launch(flags)
        except ValueError:
            if not (self.failures or self.stopped):  # else, they are listed below
                raise
        finally:
            if self.jobs:  # such as --cfg has none
                self.report()
        if self.failures:
            sys.exit(1)

    def run(self, composed: DictConfig) -> float | None:
        """Run one job, and return its best validation score.

        Sweepers such as Optuna optimize this score. Return None if the job fails or stops early, or
        if the run has no score.
        """
        settings = HydraConfig.get()
        folder = Path(settings.runtime.output_dir)
        with self.errors(settings), removed_if_empty(folder, is_named(settings)):
            sys.argv = self.argv  # for a job in another process, such as Slurm's
            import_own_parts()
            in_sweep = settings.mode == RunMode.MULTIRUN
            if in_sweep and os.environ.get("WORLD_SIZE", "1") != "1":
                raise ValueError("torchrun cannot run a sweep (-m): use torchrun for a single run")
            outcome = self.job(composed, settings, folder)
            if not outcome.finished:
                self.stopped.append(outcome.folder)
            if outcome.exit_status:
                sys.exit(outcome.exit_status)
            return outcome.score if outcome.finished else None
        return None

    @contextlib.contextmanager
    def errors(self, settings: HydraConf) -> Iterator[None]:
        """Print and record an error of a job instead of raising it, so that the sweep continues.

        Launchers other than Hydra's BasicLauncher run jobs in other processes, and report errors
        themselves; with such a launcher, errors are raised. An error of a single run ends the
        program.
        """
        if settings.mode != RunMode.MULTIRUN:
            with short_errors("vit-train"):
                yield
            return
        if not str(settings.launcher._target_).endswith("BasicLauncher"):
            yield
            return
        self.jobs += 1
        self.folder = settings.sweep.dir
        try:
            yield
        except Exception as error:
            job = settings.job
            message = printable(f"{job.override_dirname or job.num}: {explain(error)}", keep="\n")
            say(f"{lines_above(error)}vit-train: job {job.num} failed: {message}", sys.stderr)
            self.failures.append(f"  job {job.num}, {message}")

    def launch(self, flags: argparse.Namespace) -> Path | None:
        """Run what `flags` describe; return the sweep's folder if all its jobs have finished."""
        _run_hydra(flags, flag_parser(), self.run, str(CONF_DIR), "train")
        return None if self.failures or self.stopped else Path(self.folder)

    def report(self) -> None:
        """Print how many jobs of a sweep finished, and list those that stopped early or failed."""
        finished = self.jobs - len(self.failures) - len(self.stopped)
        print(f"{finished} of {self.jobs} jobs finished")
        runs = for_shell(Path(self.folder))
        if finished:
            say(f"next    vit-results {runs}\n        tensorboard --logdir {runs}")
        if self.stopped:
            commands = map(resume_command, self.stopped)
            say("\n  ".join(("jobs that stopped early; resume each job with:", *commands)))
            say(f"to resume all and start the rest, repeat the sweep with hydra.sweep.dir={runs}")
        if self.failures:
            print("vit-train: failed jobs:", *self.failures, sep="\n", file=sys.stderr)


def say(text: str, file: TextIO | None = None) -> None:
    print(printable(text, keep="\n"), file=file)


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
    from vit_train.evaluate.cells import common_measure
    from vit_train.evaluate.differences import LAST_LOOK, difference
    from vit_train.evaluate.results import read_groups

    rest = [each for each in flags.overrides if each != AUTO]
    combinations = math.prod(
        len(list(each.sweep_string_iterator()))
        for each in OverridesParser.create().parse_overrides(rest)
        if each.is_sweep_override()
    )
    if any("hydra/launcher=" in each for each in rest):
        raise ValueError(f"{AUTO} trains one run after the other: leave out hydra/launcher=")
    if combinations != 2:
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
