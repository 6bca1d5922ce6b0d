"""A sweep continues after a job fails, and reports all failures at its end."""

import contextlib
import os
import shlex
import sys
import traceback
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import hydra
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from vit_train.base.text import printable
from vit_train.commands.command import is_answered
from vit_train.commands.errors import EXPECTED, explain, short_errors
from vit_train.commands.overrides import (
    is_named,
    is_sweep,
    quote_values,
    quoted,
    register_run_name,
    settings_and_flags,
)
from vit_train.commands.resuming import (
    begun_config,
    extended_config,
    resume_argument,
    resumed_config,
)
from vit_train.runs.config import CONF_DIR, GROUPS, TrainConfig, register_schemas, typed
from vit_train.runs.paths import (
    SUMMARY,
    Outcome,
    for_shell,
    holds_run,
    is_finished,
    last_checkpoint,
    new_run,
    removed_if_empty,
    resumed_run,
    sole_writer,
)


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


# The settings that are paths; the first is the one that a bare path may mean.
PATHS = ("resume", "extend", "init_from", "data.root", "task.teacher")
ABOUT = """\
vit-train: train a Vision Transformer on small images.

  vit-train model=tiny data=cifar10 data.root=FOLDER train.epochs=8"""
# Of the processes that torchrun starts, only the first one writes files.
IS_MAIN = os.environ.get("RANK", "0") == "0"
# Where it notes the run's folder for a restart: in the folder of torchrun's launch, which has the
# errors of a process in attempt_N/RANK/error.json.
ERRORS = os.environ.get("TORCHELASTIC_ERROR_FILE")
LAUNCH = Path(ERRORS).parents[2] / "vit_train" if ERRORS and IS_MAIN else None


def train(composed: DictConfig, sweep: Sweep) -> float | None:
    """Start or resume a run; return its best validation score, which some sweepers optimize."""
    settings = HydraConfig.get()
    if settings.mode == RunMode.MULTIRUN and os.environ.get("WORLD_SIZE", "1") != "1":
        with short_errors("vit-train"):
            raise ValueError("a sweep (-m) runs in one process: start each run with torchrun alone")
    errors = sweep.errors(settings) if settings.mode == RunMode.MULTIRUN else None
    with errors or short_errors("vit-train"):
        if OmegaConf.get_type(composed) is not TrainConfig:
            raise ValueError(
                f"--config-name={settings.job.config_name}: such a file must begin with 'defaults: "
                "[train, _self_]'; a run is repeated by the command in its summary.json, not by "
                "its config.yaml"
            )
        begin = start if composed.resume is None else resume
        outcome = begin(composed, settings)
        if not outcome.finished:
            sweep.stopped.append(outcome.folder)
        if outcome.exit_status:
            sys.exit(outcome.exit_status)
        return outcome.score
    return None


def start(composed: DictConfig, settings: HydraConf) -> Outcome:
    """Start a new run, which may extend another, in a folder of its own."""
    folder = Path(settings.runtime.output_dir)
    before = folder if settings.mode == RunMode.MULTIRUN else before_restart()
    if before is not None and holds_run(before):
        config = begun_config(before, new_config(composed, settings))
        if config is not None:
            with removed_if_empty(folder, is_named(settings)):
                return resume_begun(before, config)
    with new_run(folder, is_named(settings)) if IS_MAIN else nullcontext(folder) as path:
        config = new_config(composed, settings)
        if LAUNCH is not None:
            LAUNCH.write_text(str(path.absolute()), encoding="utf-8")
        from vit_train.training.train import train_in_held_folder

        return train_in_held_folder(config, path)


def before_restart() -> Path | None:
    """Return the run's folder if torchrun started its processes before (--max-restarts)."""
    if LAUNCH is None or not LAUNCH.exists():
        return None
    return Path(LAUNCH.read_text(encoding="utf-8"))


def new_config(composed: DictConfig, settings: HydraConf) -> TrainConfig:
    """Return the settings of a new run, which may extend another."""
    if composed.extend is None:
        return typed(composed, TrainConfig)
    return extended_config(composed, settings.overrides.task)


def resume_begun(folder: Path, config: TrainConfig) -> Outcome:
    """Resume a run that was begun before, unless it is finished."""
    from vit_train.runs.checkpoint import Checkpoint
    from vit_train.training.train import train_in_held_folder

    with sole_writer(folder):
        checkpoint = last_checkpoint(folder)
        if not is_finished(folder):
            print(printable(f"{folder} was begun with these settings and is resumed"))
            return train_in_held_folder(config, folder, checkpoint, resumed=True)
        print(printable(f"{folder} is finished, with these settings, and is not repeated"))
        best = None if checkpoint is None else Checkpoint.load(checkpoint).best
        return Outcome(folder, None if best is None else best.score)


def resume(composed: DictConfig, settings: HydraConf) -> Outcome:
    """Resume an earlier run in its folder, unless it is finished."""
    folder, named = resumed_run(composed.resume)
    with sole_writer(folder) if IS_MAIN else nullcontext():
        checkpoint = named or last_checkpoint(folder)
        finished = is_finished(folder)
        config = resumed_config(folder, checkpoint, composed, settings.overrides.task, finished)
        if finished:
            said = (
                f"{folder} is finished: its results are in {folder / SUMMARY}; "
                f"extend={for_shell(folder)} train.epochs=N trains it for N more epochs, in a new "
                "folder"
            )
            print(printable(said))
            return Outcome(folder)
        from vit_train.training.train import train_in_held_folder

        return train_in_held_folder(config, folder, checkpoint, resumed=True)


def for_hydra(resumed: Path | None) -> list[str]:
    """Return overrides that tell Hydra which folder to write into.

    That is the folder of a resumed run. All processes but the first write nothing.
    """
    if not IS_MAIN:
        return ["hydra.run.dir=.", "hydra/job_logging=disabled"]
    if resumed is not None:
        return [f"hydra.run.dir={quoted(resumed)}"]
    return []


def main() -> None:
    sweep = Sweep()

    @hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name="train")
    def job(composed: DictConfig) -> float | None:
        return train(composed, sweep)

    register_schemas()
    register_run_name()
    with short_errors("vit-train"):
        sys.argv[1:] = quote_values(sys.argv[1:], PATHS)
        earlier, folder = resume_argument(sys.argv[1:]), None
        if earlier is not None:
            if is_sweep(sys.argv[1:]):
                raise ValueError("resume continues a single run: leave out -m")
            folder, _ = resumed_run(earlier)
        sys.argv[1:] += for_hydra(folder)
        try:
            arguments, flags = settings_and_flags(sys.argv[1:])
            if is_answered("train", ABOUT, TrainConfig, GROUPS, arguments, flags):
                return
            sys.argv[1:] = [*arguments, *flags]
            job()
        except ValueError:
            sweep.report()  # why a search found nothing, if its jobs failed
            raise
        except SystemExit:  # Ctrl-C
            if failed := sweep.said():
                print(failed, file=sys.stderr)
            raise
        sweep.report()


if __name__ == "__main__":
    main()
