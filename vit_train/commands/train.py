"""vit-train: one run, or a sweep.

A sweep continues after a failed job, and lists the failed jobs at its end.
"""

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import hydra.utils
from hydra._internal.utils import _run_hydra
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from vit_train.base.text import file_name, printable
from vit_train.commands.command import (
    AUTO,
    flag_parser,
    import_own_parts,
    read_command,
)
from vit_train.commands.errors import EXPECTED, explain, require_known, short_errors
from vit_train.config.run import (
    CONF_DIR,
    CONTINUED,
    GROUPS,
    IMPORT,
    TrainConfig,
    keys_of,
    to_config,
)
from vit_train.trained.folder import (
    SUMMARY,
    Outcome,
    for_shell,
    holds_run,
    is_finished,
    last_checkpoint,
    new_run,
    removed_if_empty,
    resume_command,
    resumed_run,
    sole_writer,
)

if TYPE_CHECKING:  # needs torch
    from vit_train.run.folder import Launch


class Sweep:
    """Run one job, or the jobs of a sweep in turn; record which jobs stopped early or failed."""

    def __init__(self) -> None:
        self.jobs = 0
        self.folder = ""
        self.argv = sys.argv
        self.stopped: list[Path] = []
        self.failures: list[str] = []

    def run(self, composed: DictConfig) -> float | None:
        """Start or resume a run, and return its best validation score.

        Sweepers such as Optuna optimize this score. Return None if the job of a sweep fails or
        stops early, or if the run has no score.
        """
        settings = HydraConfig.get()
        in_sweep = settings.mode == RunMode.MULTIRUN
        with self.errors(settings) if in_sweep else short_errors("vit-train"):
            sys.argv = self.argv  # for a job in another process, such as Slurm's
            import_own_parts()
            if OmegaConf.get_type(composed) is not TrainConfig:
                raise ValueError(
                    f"the config file of --config-name={settings.job.config_name} must begin with "
                    "'defaults: [train, _self_]'. To repeat a run, use config= with the run's "
                    "folder instead of --config-name"
                )
            if in_sweep and os.environ.get("WORLD_SIZE", "1") != "1":
                raise ValueError("torchrun cannot run a sweep (-m): use torchrun for a single run")
            outcome = (start if composed.resume is None else resume)(composed, settings)
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
        themselves; with such a launcher, errors are raised.
        """
        if not str(settings.launcher._target_).endswith("BasicLauncher"):
            yield
            return
        self.jobs = self.jobs + 1
        self.folder = settings.sweep.dir
        try:
            yield
        except Exception as error:
            if not isinstance(error, EXPECTED):
                say(traceback.format_exc(), sys.stderr)
            job = settings.job
            message = printable(f"{job.override_dirname or job.num}: {explain(error)}", keep="\n")
            print(f"vit-train: job {job.num} failed: {message}", file=sys.stderr)
            self.failures.append(f"  job {job.num}, {message}")

    def launch(self, flags: argparse.Namespace) -> Path | None:
        """Run what `flags` describe; return the sweep's folder if all its jobs have finished."""
        with allow(EXECUTED) if allow else contextlib.nullcontext():
            _run_hydra(flags, flag_parser(), self.run, str(CONF_DIR), "train")
        return None if self.failures or self.stopped else Path(self.folder)

    @contextlib.contextmanager
    def reported(self) -> Iterator[None]:
        """After the block, report on the jobs of a sweep, and exit with status 1 if any failed."""
        try:
            yield
        except ValueError:
            if not (self.failures or self.stopped):  # else, they are listed below
                raise
        finally:
            if self.jobs:  # a single run reports its own end
                self.report()
        if self.failures:
            sys.exit(1)

    def report(self) -> None:
        """Print how many jobs of a sweep finished, and list those that stopped early or failed."""
        finished = self.jobs - len(self.failures) - len(self.stopped)
        print(f"{finished} of {self.jobs} jobs finished")
        if finished:
            runs = for_shell(Path(self.folder))
            say(f"next    vit-results {runs}\n        tensorboard --logdir {runs}")
        if self.stopped:
            commands = map(resume_command, self.stopped)
            say("\n  ".join(("jobs that stopped early; resume each job with:", *commands)))
        if self.failures:
            print("vit-train: failed jobs:", *self.failures, sep="\n", file=sys.stderr)


def say(text: str, file: TextIO | None = None) -> None:
    print(printable(text, keep="\n"), file=file)


ABOUT = """\
vit-train: train a Vision Transformer on small images.

vit-train model=tiny data=cifar10 data.root=FOLDER train.epochs=8"""
# Among the processes that torchrun starts, only the first one writes files. Other launchers may set
# RANK for processes that train alone.
IS_MAIN = os.environ.get("RANK", "0") == "0" or os.environ.get("WORLD_SIZE", "1") == "1"
# torchrun's launch folder has attempt_N/RANK/error.json. The file LAUNCH in it records the run's
# folder for a restart.
ERRORS = os.environ.get("TORCHELASTIC_ERROR_FILE")
LAUNCH = Path(ERRORS).parents[2] / "vit_train" if ERRORS and IS_MAIN else None


def start(composed: DictConfig, settings: HydraConf) -> Outcome:
    """Start a run in a new folder; the run may extend, fork or repeat an earlier run.

    If the same sweep, or the same launch of torchrun, has already begun a run with the same
    settings, resume that run instead.
    """
    folder = Path(settings.runtime.output_dir)
    is_named = any(each.startswith("hydra.run.dir=") for each in settings.overrides.hydra)
    with removed_if_empty(folder, is_named):
        config = new_config(composed, settings)
        if found := already_begun(folder, config, settings):
            return continue_run(found[0], None, found[1], settings)
    with new_run(folder, is_named) if IS_MAIN else contextlib.nullcontext(folder) as path:
        searches = AUTO in sys.argv or "Optuna" in str(settings.sweeper._target_)
        if settings.mode == RunMode.MULTIRUN and searches and config.data.val == "none":
            raise ValueError("this sweep needs validation results: choose data.val=split")
        if LAUNCH is not None:
            LAUNCH.write_text(str(path.absolute()), encoding="utf-8")
        from vit_train.run.train import train_in

        return train_in(path, config, launch_of(settings))


def already_begun(
    folder: Path, config: TrainConfig, settings: HydraConf
) -> tuple[Path, TrainConfig] | None:
    """Return the run that the same sweep or launch has begun with the same settings, if any.

    Also return the settings with which to resume it.
    """
    # The run's folder if torchrun has started these processes before (--max-restarts).
    earlier = [Path(LAUNCH.read_text(encoding="utf-8"))] if LAUNCH and LAUNCH.exists() else []
    if settings.mode == RunMode.MULTIRUN:  # the job may have had another number
        earlier = [folder, *sorted({*folder.parent.iterdir()} - {folder})]
    earlier = list(filter(holds_run, earlier))
    if not earlier:
        return None
    from vit_train.commands.rerun import begun_run  # rarely needed

    return begun_run(earlier, config)


def launch_of(settings: HydraConf) -> "Launch":
    """Describe how this run was started; the command of a sweep's job repeats only this job."""
    from vit_train.run.folder import Launch
    from vit_train.trained.provenance import command_line

    task = list(settings.overrides.task)
    if settings.mode != RunMode.MULTIRUN:
        return Launch(command_line(), keys_of(task))
    # Hydra's name for the source that --config-dir adds.
    folders = [s.path for s in settings.runtime.config_sources if s.provider == "command-line"]
    flags = [
        *(f"--config-dir={folder}" for folder in folders),
        *(each for each in settings.overrides.hydra if each.startswith("hydra.searchpath=")),
        *(each for each in sys.argv[1:] if each.startswith(IMPORT)),
    ]
    if settings.job.config_name != "train":
        flags.append(f"--config-name={settings.job.config_name}")
    # An experiment may turn every command that names it into a sweep.
    return Launch(command_line([*task, "hydra.mode=RUN", *flags]), keys_of(task), in_sweep=True)


def new_config(composed: DictConfig, settings: HydraConf) -> TrainConfig:
    """Return the settings of a new run, which may extend, fork or repeat an earlier run."""
    require_known(composed, TrainConfig)
    if all(composed[key] is None for key in CONTINUED):
        return to_config(composed, TrainConfig)
    from vit_train.commands.rerun import rerun_config  # rarely needed

    return rerun_config(composed, settings.overrides.task)


def resume(composed: DictConfig, settings: HydraConf) -> Outcome:
    """Resume the run that `resume=` names, in the run's own folder, unless the run is finished."""
    from vit_train.commands.rerun import changed, own_settings  # rarely needed

    require_known(composed, TrainConfig)
    folder, named = resumed_run(composed.resume)
    own = own_settings(folder, named or last_checkpoint(folder))
    config = changed("resume", own, composed, settings.overrides.task)
    return continue_run(folder, named, config, settings)


def continue_run(
    folder: Path, named: Path | None, config: TrainConfig, settings: HydraConf
) -> Outcome:
    """Continue the run in `folder` from the checkpoint `named` or, if None, the last checkpoint.

    If the run is finished, print how to extend the run instead.
    """
    from vit_train.run.train import train_in
    from vit_train.trained.checkpoint import Checkpoint

    with sole_writer(folder) if IS_MAIN else contextlib.nullcontext():
        checkpoint = named or last_checkpoint(folder)
        if not is_finished(folder):
            return train_in(folder, config, launch_of(settings), checkpoint, resumed=True)
        say(
            f"{folder} is finished: its results are in {folder / SUMMARY}; to train it for N "
            f"more epochs in a new folder, use extend={for_shell(folder)} train.epochs=N"
        )
        best = None if checkpoint is None else Checkpoint.load(checkpoint).best
        return Outcome(folder, None if best is None else best.score)


def new_run_folder(choices: Mapping[str, str], now: str, _root_: DictConfig) -> str:
    """Return the folder of a new run, such as outputs/cifar10-tiny/TIME; `now` is TIME.

    The file conf/train.yaml calls this function. The folder is named after the first of these that
    is given: name=; the run that is extended, forked or repeated; the experiment; the `choices` of
    data, model and task. With data=folder, the name of the user's image folder replaces the name of
    the data. With resume=, return "." as a placeholder; the run's existing folder is found later.
    """
    data = choices["data"]
    task = choices["task"]
    root = _root_.data.get("root")
    if _root_.resume is not None:  # the real folder, the run's own, is found later
        return "."
    if data == "folder" and root:
        data = file_name(Path(os.path.expanduser(root)).resolve().name) or data
    model = {"vit": "tiny"}.get(choices["model"], choices["model"])  # the same, left out
    name = f"{data}-{model}" + ("" if task == "classify" else f"-{task}")
    verbs = {"extend": "extended", "fork": "forked", "config": "repeated"}
    used = next((key for key in verbs if _root_[key] is not None), None)
    if _root_.name:
        name = file_name(_root_.name)
    elif used:
        path = Path(_root_[used]).resolve()
        run = next(filter(holds_run, path.parents), path) if path.is_file() else path
        name = f"{run.name}-{verbs[used]}"
    elif isinstance(experiment := choices.get("experiment"), str):
        name = experiment
    return f"outputs/{name}/{now}"


def job_folder(number: int) -> str:
    """Return the name of a sweep's job: the settings that vary, such as "depth_2-seed_0".

    The file conf/train.yaml calls this function. A setting varies unless it was typed with a single
    value. If no setting varies, return the job's number.
    """
    fixed = [each.partition("=")[0] for each in sys.argv if "," not in each]
    chosen = (each.partition("=") for each in HydraConfig.get().overrides.task)
    words = (f"{key.rpartition('.')[2]}_{value}" for key, _, value in chosen if key not in fixed)
    return file_name("-".join(words)) or str(number)


# From Hydra 1.4 on, a program lists what Hydra may run for a config: its launchers and sweepers,
# and logging.
allow: Any = getattr(hydra.utils, "execution_whitelist", None)
EXECUTED = ["hydra.*", "hydra_plugins.*", "logging.*", "vit_train.base.log.PrintableFormatter"]
# Not in main, because the processes of Slurm only import this module.
register: Any = OmegaConf.register_resolver if allow else OmegaConf.register_new_resolver
register("new_run_folder", new_run_folder, replace=True)
register("job_folder", job_folder, replace=True)


def main() -> None:
    sweep = Sweep()
    with short_errors("vit-train"):
        flags = read_command("train", ABOUT, TrainConfig, GROUPS, "resume")
        if flags.multirun and any(each.startswith("resume=") for each in flags.overrides):
            raise ValueError("resume= continues a single run: leave out -m")
        if not IS_MAIN:  # only the main process writes files
            flags.overrides += ["hydra.run.dir=.", "hydra/job_logging=disabled"]

        with sweep.reported():
            if AUTO in flags.overrides:
                from vit_train.commands.sweep import run_until_decided  # rarely needed

                flags.multirun = True
                run_until_decided(flags, sweep.launch)
            else:
                sweep.launch(flags)


if __name__ == "__main__":
    main()
