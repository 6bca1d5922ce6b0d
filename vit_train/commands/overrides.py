"""Arguments as Hydra wants them: settings apart from flags, and paths with any character quoted."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from hydra.conf import HydraConf
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException
from omegaconf import OmegaConf

from vit_train.base.text import file_name
from vit_train.runs.paths import CONFIG

GRAMMAR = "key=value; quote a value with special characters: key='a, b'"
DEEP = "an argument or a config file is nested too deeply"
# Hydra's flags that may be followed by a value, but not --experimental-rerun: it unpickles a file,
# which could run any code.
TAKE_VALUE = (
    *("--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn"),
    *("--cfg", "-c", "--package", "-p", "--info", "-i"),
)
FLAGS = (
    *("--help", "--hydra-help", "--version", "--resolve", "--run", "--multirun"),
    *("--shell-completion", *(flag for flag in TAKE_VALUE if flag.startswith("--"))),
)
KEY = r"\+{0,2}[A-Za-z_][\w./@-]*"


def parsed(arguments: Iterable[str]) -> Iterator[Override]:
    """Yield the arguments, read by Hydra's grammar; raise ValueError for those that it lacks."""
    parser = OverridesParser.create()
    for argument in arguments:
        try:
            (override,) = parser.parse_overrides([argument])
        except RecursionError:
            raise ValueError(DEEP) from None
        except OverrideParseException:
            raise ValueError(f"{argument} cannot be read as {GRAMMAR}") from None
        except ValueError:  # of Python
            raise ValueError("an argument has a number with too many digits") from None
        yield override


def settings_and_flags(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the settings and Hydra's flags, which may stand anywhere among them.

    `experiment=null` becomes `~experiment`, because Hydra knows no null group on the command line.
    Raise ValueError for a setting without a value.
    """
    settings, flags = [], []
    for before, argument in pairwise(["", *arguments]):
        if argument.startswith("--") and argument.partition("=")[0] not in FLAGS:
            raise ValueError(f"there is no flag {argument}: settings are written KEY=VALUE")
        if argument.startswith("-") or (before in TAKE_VALUE and "=" not in argument):
            flags.append(argument)
        elif re.fullmatch(KEY, argument):
            raise ValueError(f"{argument} has no value: write {argument}=VALUE")
        else:
            settings.append("~experiment" if argument == "experiment=null" else argument)
    return settings, flags


def is_sweep(arguments: Sequence[str]) -> bool:
    return bool({"-m", "--multirun"} & set(arguments))


def quote_values(arguments: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Quote the value of each of these keys for Hydra's grammar if it is a path that exists.

    A ~ in front means the home folder, which shells leave as it is behind a key with a dot. Raise
    ValueError for an existing path without a key, and suggest the first key.
    """
    result = []
    for before, argument in pairwise(["", *arguments]):
        key, sign, value = argument.partition("=")
        if not sign and argument and before[:1] != "-" and exists(argument):
            hint = f"did you mean {keys[0]}={argument}?" if keys else "write KEY=VALUE"
            raise ValueError(f"{argument} is not a setting: {hint}")
        is_home = value == "~" or value.startswith("~/")
        if key in keys and value and (is_home or exists(value)):
            path = str(Path(value).expanduser()) if is_home else value
            argument = f"{key}={path if is_plain(path) else quoted(path)}"
        result.append(argument)
    return result


def is_plain(value: str) -> bool:
    """Check for a value that Hydra reads as text without quotes."""
    words = ("null", "true", "false", "nan", "inf")
    return bool(re.fullmatch(r"[A-Za-z_/][\w./-]*", value)) and value.lower() not in words


def exists(path: str) -> bool:
    """Check for an existing path; a long list is too long for a path."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def quoted(path: Path | str) -> str:
    """Quote the path for Hydra's grammar, where backslashes are special only before a quote."""
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", str(path))
    escaped = re.sub(r"(\\+)$", r"\1\1", escaped)
    return f"'{escaped}'"


def run_name(overrides: Sequence[str], choices: Mapping[str, str], root: str | None) -> str:
    """Return the name of the experiment, A+B for several, or else one such as cifar10-tiny.

    A run that extends another has the name of the folder that this one is in, such as cifar10-tiny.
    `choices` are those of the groups, and `root` is the folder of the data, if they have one.
    """
    chosen, otherwise = None, what_on_what(choices, root)
    for override in parsed(overrides):
        value = override.value()
        if override.key_or_group == "extend" and isinstance(value, str):
            path = Path(value).resolve()
            if path.is_dir():  # what is not must not be made
                if not (path / CONFIG).exists():
                    return path.name or otherwise
                beside = path.parent.name
                return f"{path.name}-extended" if beside in ("outputs", "") else beside
        if override.key_or_group == "experiment":
            chosen = value
    names = chosen if isinstance(chosen, list) else [chosen]
    return "+".join(str(name) for name in names if name is not None) or otherwise


def what_on_what(choices: Mapping[str, str], root: str | None) -> str:
    """Return a name such as cifar10-tiny, or cifar10-tiny-reconstruct for a task without labels.

    Of a folder of one's own images, it has the name.
    """
    data, task = choices["data"], choices["task"]
    if data == "folder" and root:
        data = file_name(Path(root).expanduser().resolve().name) or data
    return f"{data}-{choices['model']}" + ("" if task == "classify" else f"-{task}")


def is_named(settings: HydraConf) -> bool:
    """Check for a folder that is named on the command line."""
    return any(override.startswith("hydra.run.dir=") for override in settings.overrides.hydra)


def register_run_name() -> None:
    """Let conf/train.yaml call `run_name`."""
    OmegaConf.register_new_resolver("run_name", run_name, replace=True)
