"""Errors of libraries in a few words."""

import re
from pathlib import Path

from hydra.errors import MissingConfigException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from vit_train.commands.arguments import no_such_choice, no_such_setting, schema
from vit_train.commands.overrides import DEEP
from vit_train.files.memory import gigabytes, is_out_of_memory
from vit_train.runs.config import TrainConfig

PLUGINS = "pip install -e '.[sweeps]' in the checkout adds Optuna and Slurm"
# Hydra, its plugins, and what they stand on.
HYDRA = ("hydra", "hydra_plugins", "submitit", "optuna", "sqlalchemy")


def from_hydra(error: BaseException) -> bool:
    """Return whether Hydra or a plugin failed, for example without Slurm or a database."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and frame.tb_frame.f_globals["__name__"].partition(".")[0] in HYDRA


def explain(error: BaseException) -> str:
    """Describe an error in a few lines; a very long line is shortened to its two ends."""
    return re.sub(r"(?m)^(.{200}).{500,}(.{200})$", r"\1…\2", describe(error))


def describe(error: BaseException) -> str:
    if is_out_of_memory(error):
        said = str(error)
        if found := re.search(r"tried to allocate (\d+) bytes", said):  # PyTorch, on a CPU
            said = f"{gigabytes(int(found[1]))} more cannot be had: choose fewer or smaller images"
        return said if said.startswith("out of memory") else f"out of memory: {said}".rstrip(": ")
    # Hydra names the config file at fault.
    where = file[0] if (file := re.match(r"In '[^']+': ", str(error))) else ""
    context = None if error.__suppress_context__ else error.__context__
    causes = error, error.__cause__, context
    if any(isinstance(cause, RecursionError) for cause in causes):
        return DEEP
    for cause in causes:
        if isinstance(cause, ConfigKeyError | ConfigAttributeError) and cause.full_key:
            return where + no_such_setting(cause.full_key, schema(TrainConfig))
        if isinstance(cause, MissingConfigException):
            group, _, choice = str(cause.missing_cfg_file).rpartition("/")
            if cause.options is None:
                return f"there is no {choice}.yaml"
            plugins = f"\n{PLUGINS}" if group.startswith("hydra/") else ""
            return where + no_such_choice(group, choice, sorted(cause.options)) + plugins
        if isinstance(cause, OmegaConfBaseException):  # in a config file
            return f"{where}{cause.full_key}: {str(cause.msg).splitlines()[0]}"
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        name = Path(str(error.filename2 or error.filename))
        return f"{name}: {error.strerror}"
    return str(error)
