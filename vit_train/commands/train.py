"""vit-train: one run, new or resumed, and the folder that it gets; see sweep.py for several."""

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from vit_train.base.log import logged_by, logger, shown_on_terminal
from vit_train.base.machine import command_line
from vit_train.base.text import file_name
from vit_train.commands.command import AUTO, composed, is_named, read_command, refuse
from vit_train.commands.errors import require_known, short_errors
from vit_train.config.run import (
    CONTINUED,
    GROUPS,
    IMPORT,
    TrainConfig,
    keys_of,
    to_config,
)
from vit_train.trained.folder import (
    SUMMARY,
    Launch,
    Outcome,
    for_shell,
    holds_run,
    is_finished,
    last_checkpoint,
    new_run,
    resumed_run,
    sole_writer,
)
from vit_train.trained.own_code import own_modules

ABOUT = """\
vit-train: train a Vision Transformer on small images.

vit-train model=tiny data=cifar10 data.root=FOLDER train.epochs=8"""
# Flags and settings with which a single run needs no more of Hydra than its config.
COMPOSED = {"overrides", "config_dir", "run", "hydra.run.dir", "hydra.searchpath"}
# Settings of Hydra that have an effect only on sweeps.
FOR_SWEEPS = ("hydra.sweep.dir=", "hydra/launcher=", "hydra/sweeper=")
# Among the processes that torchrun starts, only the first one writes files. Other launchers may set
# RANK for processes that train alone.
IS_MAIN = os.environ.get("RANK", "0") == "0" or os.environ.get("WORLD_SIZE", "1") == "1"
# torchrun's launch folder has attempt_N/RANK/error.json. The file LAUNCH in it records the run's
# folder for a restart.
ERRORS = os.environ.get("TORCHELASTIC_ERROR_FILE")
LAUNCH = Path(ERRORS).parents[2] / "vit_train" if ERRORS and IS_MAIN else None


def start(composed: DictConfig, settings: HydraConf, folder: Path) -> Outcome:
    """Start a run in a new folder; the run may extend, fork or repeat an earlier run.

    `composed` has the run's settings, and `settings` are Hydra's own. With resume=, resume the run
    that it names instead. If the same sweep, or the same launch of torchrun, has already begun a
    run with the same settings, resume that run.
    """
    if OmegaConf.get_type(composed) is not TrainConfig:
        raise ValueError(
            f"the config file of --config-name={settings.job.config_name} must begin with "
            "'defaults: [train, _self_]'. To repeat a run, use config= with the run's folder "
            "instead of --config-name"
        )
    require_known(composed, TrainConfig)
    used = [f"{key}=" for key in CONTINUED if composed[key] is not None]
    if len(used) > 1:
        refuse(f"{' and '.join(used)} cannot be combined: use only one of them")
    in_sweep = settings.mode == RunMode.MULTIRUN
    unused = ("hydra.run.dir=",) if in_sweep or used == ["resume="] else FOR_SWEEPS
    useless = [each for each in settings.overrides.hydra if each.startswith(unused)]
    if IS_MAIN and useless:
        refuse(
            f"{useless[0]} has no effect here: hydra.run.dir= is only for a new single run, and "
            "hydra.sweep.dir=, hydra/launcher= and hydra/sweeper= are only for sweeps: add -m (a "
            "resumed run stays in its folder)"
        )
    if composed.resume is not None:
        return resume(composed, settings)
    if used:
        from vit_train.commands.rerun import rerun_config  # rarely needed

        config = rerun_config(composed, settings.overrides.task)
    else:
        config = to_config(composed, TrainConfig)
    if found := already_begun(folder, config, settings):
        return continue_run(found[0], None, found[1], settings)
    searches = AUTO in sys.argv or "Optuna" in str(settings.sweeper._target_)
    if in_sweep and searches and config.data.val == "none":
        refuse("this sweep needs validation results: choose data.val=split")
    if own_modules():
        from vit_train.run.check import require_own_parts  # rarely needed

        require_own_parts(config)
    with new_run(folder, is_named(settings)) if IS_MAIN else contextlib.nullcontext(folder) as path:
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

    return begun_run(earlier, config, varied())


def launch_of(settings: HydraConf) -> Launch:
    """Describe how this run was started; the command of a sweep's job repeats only this job."""
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


def resume(composed: DictConfig, settings: HydraConf) -> Outcome:
    """Resume the run that `resume=` names, in the run's own folder, unless the run is finished."""
    from vit_train.commands.rerun import changed, own_settings  # rarely needed

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
        logger.info(
            f"{folder} is finished: its results are in {folder / SUMMARY}; to train it for N "
            f"more epochs in a new folder, use extend={for_shell(folder)} train.epochs=N"
        )
        best = Checkpoint.load(checkpoint).best if checkpoint else None
        return Outcome(folder, best.score if best else None)


def new_run_folder(choices: Mapping[str, str], now: str, _root_: DictConfig) -> str:
    """Return the folder of a new run, such as outputs/cifar10-tiny/TIME; `now` is TIME.

    The file conf/train.yaml calls this function. The folder is named after the first of these that
    is given: name=; the run that is extended, forked or repeated; the experiment; the `choices` of
    data, model and task. With data=folder, the name of the user's image folder replaces the name of
    the data.
    """
    data = choices["data"]
    task = choices["task"]
    root = _root_.data.get("root")
    if data == "folder" and root:
        data = file_name(Path(root).resolve().name) or data
    model = {"vit": "tiny"}.get(choices["model"], choices["model"])  # the same, left out
    name = f"{data}-{model}" + ("" if task == "classify" else f"-{task}")
    verbs = {"extend": "extended", "fork": "forked", "config": "repeated"}
    used = next((key for key in verbs if _root_[key] is not None), None)
    if _root_.name:
        name = file_name(_root_.name)
    elif used:
        path = Path(_root_[used]).resolve()
        run = next(filter(holds_run, path.parents), path.parent) if path.is_file() else path
        name = f"{run.name}-{verbs[used]}"
    elif isinstance(experiment := choices.get("experiment"), str):
        name = experiment
    return f"outputs/{name}/{now}"


def job_folder(number: int) -> str:
    """Return the name of a sweep's job: the settings that vary, such as "depth_2-seed_0".

    The file conf/train.yaml calls this function. If no setting varies, return the job's number.
    """
    words = (f"{key.rpartition('.')[2]}_{value}" for key, value in varied().items())
    return file_name("-".join(words)) or str(number)


def varied() -> dict[str, str]:
    """Return the settings that vary in this sweep, with this job's values.

    A setting varies unless it was typed with a single value.
    """
    # Without the commas of a,b and the brackets of range(3).
    fixed = [each.partition("=")[0] for each in sys.argv if {*",("}.isdisjoint(each)]
    chosen = (each.partition("=") for each in HydraConfig.get().overrides.task)
    return {key: value for key, _, value in chosen if key not in fixed}


# Not in main, because the processes of Slurm only import this module.
OmegaConf.register_new_resolver("new_run_folder", new_run_folder, replace=True)
OmegaConf.register_new_resolver("job_folder", job_folder, replace=True)


def single_run(flags: argparse.Namespace) -> DictConfig | None:
    """Compose the config of a single run, with Hydra's own settings.

    Return None for a sweep, and for flags and settings with which Hydra has to start the run, such
    as --cfg or hydra.job.env_set.
    """
    used = {flag for flag, value in vars(flags).items() if value}
    typed = OverridesParser.create().parse_overrides(flags.overrides)
    used |= {each.key_or_group for each in typed if each.key_or_group.startswith("hydra")}
    is_sweep = AUTO in flags.overrides or any(each.is_sweep_override() for each in typed)
    if is_sweep or not used <= COMPOSED:
        return None
    config = composed("train", flags, hydra=True)
    job = config.hydra.job
    needs_hydra = config.hydra.callbacks or job.env_set or job.chdir or config.hydra.output_subdir
    return None if needs_hydra or config.hydra.mode == RunMode.MULTIRUN else config


def main() -> None:
    with short_errors("vit-train"):
        flags = read_command("train", ABOUT, TrainConfig, GROUPS, "resume")
        if flags.multirun and any(each.startswith("resume=") for each in flags.overrides):
            refuse("resume= continues a single run: leave out -m")
        config = single_run(flags)
        if config is None:
            from vit_train.commands.sweep import Sweep  # rarely needed

            if not IS_MAIN:  # only the main process writes files
                flags.overrides += ["hydra.run.dir=.", "hydra/job_logging=disabled"]
            return Sweep(start).main(flags)
        HydraConfig.instance().set_config(config)  # for ${hydra:…} in the folder's name
        settings = config.hydra
        folder = Path(settings.run.dir).absolute()
        with read_write(settings):
            settings.runtime.output_dir = str(folder)
        HydraConfig.instance().set_config(config)  # which copies it
        with open_dict(config):
            del config["hydra"]
        # Without any handler, Python would print warnings.
        with shown_on_terminal() if IS_MAIN else logged_by(logging.NullHandler()):
            outcome = start(config, settings, folder)
        if outcome.exit_status:
            sys.exit(outcome.exit_status)


if __name__ == "__main__":
    main()
