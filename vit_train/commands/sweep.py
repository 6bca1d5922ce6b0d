"""A sweep continues after a job fails, and reports all failures at its end."""

import contextlib
import shlex
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from hydra.conf import HydraConf

from vit_train.base.text import printable
from vit_train.commands.errors import EXPECTED, explain


class Sweep:
    """The jobs that this process has run, one after another."""

    def __init__(self) -> None:
        self.jobs, self.folder = 0, ""
        self.stopped: list[Path] = []
        self.failures: list[str] = []

    @contextlib.contextmanager
    def errors(self, settings: HydraConf) -> Iterator[None]:
        """Print and record an error in one job, so that the sweep continues.

        Other launchers run their jobs in other processes and keep track of errors themselves.
        """
        if not str(settings.launcher._target_).endswith("BasicLauncher"):
            yield
            return
        self.jobs, self.folder = self.jobs + 1, settings.sweep.dir
        try:
            yield
        except Exception as error:
            if not isinstance(error, EXPECTED):
                traceback.print_exc()
            job = settings.job.override_dirname or settings.job.num
            message = printable(f"{job}: {explain(error)}", keep="\n")
            print(f"vit-train: job {settings.job.num} failed: {message}", file=sys.stderr)
            self.failures.append(f"  job {settings.job.num}, {message}")

    def report(self) -> None:
        """Print the jobs that stopped early; exit with the reasons of those that failed, if any."""
        if failed := self.said():
            sys.exit(failed)

    def said(self) -> str:
        """Print the jobs that stopped early; return the failed ones with their reasons, or ""."""
        jobs, stopped, failures = self.jobs, self.stopped, self.failures
        self.jobs, self.stopped, self.failures = 0, [], []
        if not jobs:  # a single run has said so itself
            return ""
        finished = jobs - len(failures) - len(stopped)
        print(f"{finished} of {jobs} jobs finished")
        if finished:
            runs = shlex.quote(self.folder)
            print(
                printable(f"next    vit-results {runs}\n        tensorboard --logdir {runs}", "\n")
            )
        if stopped:
            print("stopped before their end; resume each with:")
        for folder in stopped:
            print(printable(f"  vit-train {shlex.quote(f'resume={folder}')}"))
        return "vit-train: failed jobs:\n" + "\n".join(failures) if failures else ""
