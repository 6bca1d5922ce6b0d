"""Errors of Hydra and OmegaConf in the user's words."""

import difflib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    OmegaConfBaseException,
    ValidationError,
)

from vit_train.files.memory import gigabytes, is_out_of_memory
from vit_train.files.reading import flatten
from vit_train.runs.config import NOT_TAKEN_AWAY, no_such_setting

PLUGINS = "pip install -e '.[sweeps]' in the checkout adds Optuna and Slurm"
# Hydra, its plugins, and what they stand on.
HYDRA = ("hydra", "hydra_plugins", "submitit", "optuna", "sqlalchemy")
GRAMMAR = "key=value; quote a value with special characters: key='a, b'"
GROUP = "a group is chosen by a name, such as model=tiny"
DEEP = "an argument or a config file is nested too deeply"
DIGITS = "an argument or a config file has a number with too many digits"
# What a setting must be, by what OmegaConf says of a value that is not.
MUST_BE = {
    "converted to Integer": "must be a whole number",
    "converted to Float": "must be a number",
    "not a valid bool": "must be true or false",
    "is not a ListConfig": "must be a list, such as [A,B]",
    "to string": "must be a single word or a quoted text",
    "is not Optional": "is no value: this setting needs one",
}


def from_hydra(error: BaseException) -> bool:
    """Return whether Hydra or a plugin failed: on an argument, without Slurm, without a database.

    Hydra fails on some arguments that its grammar accepts.
    """
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is not None and frame.tb_frame.f_globals["__name__"].partition(".")[0] in HYDRA


def explain(error: BaseException) -> str:
    """Describe the error in the user's words rather than in Hydra's and OmegaConf's.

    A very long line, which may come from a long argument, is shortened to its two ends.
    """
    return re.sub(r"(?m)^(.{200}).{500,}(.{200})$", r"\1…\2", describe(error))


def describe(error: BaseException) -> str:
    if is_out_of_memory(error):
        said = str(error)
        if found := re.search(r"tried to allocate (\d+) bytes", said):  # PyTorch, on a CPU
            said = f"{gigabytes(int(found[1]))} more cannot be had: choose fewer or smaller images"
        return said if said.startswith("out of memory") else f"out of memory: {said}".rstrip(": ")
    cause = error.__cause__ or error
    where = re.match(r"In '([^']+)': ", str(error))
    if where and isinstance(error.__context__, OmegaConfBaseException):  # in a YAML file
        return where[0] + describe(error.__context__)
    for candidate in (cause, error):
        if isinstance(candidate, RecursionError):
            return DEEP
        if isinstance(candidate, ValueError) and "integer string conversion" in str(candidate):
            return DIGITS
        if isinstance(candidate, ConfigKeyError | ConfigAttributeError):
            return unknown_key(candidate)
        if isinstance(candidate, MissingConfigException) and candidate.missing_cfg_file:
            # A command's own config has no folder, and its choices are those typed.
            in_preset = where is not None and "/" in where[1] and where[1] != "hydra/config"
            preset = where[0] if where and in_preset else ""
            return preset + no_such_choice(candidate.missing_cfg_file, candidate.options or [])
        if isinstance(candidate, ValidationError) and (message := wrong_value(candidate)):
            return message
        if "Config group override must be a string" in str(candidate):
            return GROUP
        if found := re.match("Ambiguous value for argument '(.+?)'", str(candidate)):
            return (
                f"{found[1]} has several values: add -m to train with each, write a list as [A,B], "
                "or quote a text"
            )
        if isinstance(candidate, OverrideParseException):
            return f"{candidate.override} cannot be read as {GRAMMAR}"
        if isinstance(candidate, AssertionError) and from_hydra(candidate):
            return f"an argument cannot be read as {GRAMMAR}"
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        name = Path(str(error.filename2 or error.filename))
        return f"{name}: {error.strerror}"
    return tidied(str(cause if isinstance(cause, OmegaConfBaseException) else error))


def tidied(text: str) -> str:
    """Remove Hydra's search path and OmegaConf's jargon; put a list of choices on one line."""
    text = re.sub(r"Config search path:.*(\n\t.*)*", "", text).replace("\n\t", " ")
    text = re.sub(r"\w+ \(DictConfig\) does not support deletion", NOT_TAKEN_AWAY, text)
    internal = re.compile(r"\s*(object_type|reference_type|Set the environment variable)\b")
    lines = [line.rstrip() for line in text.splitlines() if not internal.match(line)]
    return re.sub(r"\s*full_key: (.+)", r" (\1)", "\n".join(line for line in lines if line))


def unknown_key(error: ConfigKeyError | ConfigAttributeError) -> str:
    """Return the message for a misspelled key, with the nearest key that exists."""
    asked = error.full_key or str(error.key)
    if error.parent_node is None:
        return no_such_setting(asked, [])
    root = OmegaConf.to_container(error.parent_node._get_root(), enum_to_str=True)
    elsewhere = [key for key, _ in flatten(root) if key.endswith(f".{error.key}")]  # type: ignore[arg-type]
    if elsewhere:
        return f"there is no setting {asked}: did you mean {' or '.join(elsewhere)}?"
    return no_such_setting(asked, [str(key) for key in error.parent_node])


def wrong_value(error: ValidationError) -> str | None:
    """Return the message for a value of the wrong type; None if the error is of another kind."""
    value = error.value if isinstance(error.value, str) else json.dumps(error.value, default=str)
    for said, expected in MUST_BE.items():
        if said in str(error.msg):
            return f"{error.full_key}={value} {expected}"
    if isinstance(error.child_node, DictConfig) and error.full_key and len(error.child_node):
        first = f"{error.full_key}.{next(iter(error.child_node))!s}"
        return f"{error.full_key} is a group of settings: change one of them, such as {first}=VALUE"
    return None


def no_such_choice(path: str, choices: Sequence[str]) -> str:
    """Return the message for the choice GROUP/NAME, which has no file."""
    # Hydra's own groups have folders in folders; of ours, only choices do.
    group, _, name = path.rpartition("/") if path.startswith("hydra/") else path.partition("/")
    near = difflib.get_close_matches(name, choices, n=1)
    message = f"there is no {group}={name}" if name else f"there is no {path}.yaml"
    if near:
        message += f": did you mean {group}={near[0]}?"
    elif choices:
        *others, last = sorted(choices)
        message += f": choose {', '.join(others)} or {last}" if others else f": choose {last}"
    return f"{message}\n{PLUGINS}" if group.startswith("hydra/") else message
