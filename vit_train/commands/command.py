"""Console commands: read a command's settings from the command line, and print its help."""

import argparse
import os
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from inspect import getdoc
from os.path import exists  # false for a list that is too long to be a path
from pathlib import Path
from typing import Any, NoReturn

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig, OmegaConf

from vit_train.base.log import shown_on_terminal
from vit_train.commands.errors import (
    GRAMMAR,
    all_settings,
    own_modules,
    require_known,
    short_errors,
)
from vit_train.config.run import (
    CHOSEN_BY_NAME,
    CONF_DIR,
    GROUPS,
    IMPORT,
    Config,
    register_schemas,
    to_config,
)

# The types of settings that hold text.
TEXT = (str, str | None, list[str])
# The parts of a value: quoted texts, and what is between quotes, commas and brackets.
PARTS = re.compile(
    r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|(?!\s)(?:\\.|[^,'"\[\](){}\\])+(?<!\s)"""
)
# Parts that Hydra may read as a number, true, false or null, and write differently as text: 0.10
# becomes 0.1. Whole numbers stay the same, and null stands for no value.
ALTERED = re.compile(r"(?!\d+$|null$)(?i:[+-]?\.?\d[\w.+-]*|[+-]?(?:inf|nan)|true|false|null)")
SETTING = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@-]*=.*", re.DOTALL)
WIDTH = 96
# Hydra's flags that also make sense for commands without sweeps.
FLAGS = ("overrides", "help", "config_dir", "cfg")


def refuse(message: str) -> NoReturn:
    """Raise ValueError; argparse's own `error` would print the usage and exit."""
    raise ValueError(message)


# Trains two combinations of settings with as many seeds as a test needs; see seeds.py.
AUTO = "seed=auto"
# Settings of the data that hold paths.
DATA_PATHS = ("data.root", "data.file", "data.split_as")


def checked(
    settings: Sequence[str], paths: Sequence[str], groups: Collection[str], texts: Collection[str]
) -> Iterator[str]:
    """Check that the settings have the form key=value; yield them with quoted paths and texts.

    `paths` names the settings whose values may be paths. A value that exists as a path, or begins
    with ~, is quoted for Hydra's grammar; a leading ~ is replaced with the home folder, because
    shells do not expand ~ after a key with a dot. `texts` names the settings that hold text; see
    `as_text`. `groups` names the groups that the command accepts. Raise ValueError for any other
    group, and for an argument without the form key=value. If that argument is an existing path, the
    message suggests the first setting in `paths` as the key.
    """
    for each in settings:
        if not SETTING.fullmatch(each):
            hint = f"did you mean {paths[0]}={each}?" if exists(each) else f"write {GRAMMAR}"
            raise ValueError(f"{each} is not a setting: {hint}")
        key, _, value = each.lstrip("+~").partition("=")
        if key in GROUPS and key not in groups and not value.startswith("{"):
            raise ValueError(
                f"{key}= cannot be set here: it comes from the checkpoint or is not used (--help "
                "lists the settings)"
            )
        is_path = key in paths and (value.startswith("~") or exists(value))
        text = quoted(os.path.expanduser(value)) if is_path else as_text(value)
        yield each.removesuffix(value) + text if key in texts else each


def quoted(path: Path | str) -> str:
    """Put a path in single quotes, with special characters escaped, for Hydra's grammar."""
    return QuotedString(str(path), Quote.single).with_quotes()


def as_text(value: str) -> str:
    """Quote the parts of a value that Hydra would alter, such as 0.10 or true.

    The value may be a list, or several values of a sweep.
    """
    return PARTS.sub(lambda part: quoted(part[0]) if ALTERED.fullmatch(part[0]) else part[0], value)


def keep_text(names: Sequence[str]) -> None:
    """Make YAML files keep the values of the settings `names` as text: name: 0.10 is "0.10".

    Only null stays null.
    """

    def construct_map(loader: Any, node: yaml.MappingNode) -> object:
        for key, value in node.value:
            is_text = key.value in names and isinstance(value, yaml.ScalarNode)
            if is_text and not (value.style or value.tag.endswith(":null")):
                value.tag = yaml.resolver.BaseResolver.DEFAULT_SCALAR_TAG
        return loader.construct_yaml_map(node)

    yaml.constructor.SafeConstructor.add_constructor(
        yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, construct_map
    )


def composed(config_name: str, flags: argparse.Namespace) -> DictConfig:
    """Compose the config from presets and the settings on the command line.

    Hydra also looks for presets in the folder given by --config-dir.
    """
    settings = list(flags.overrides)
    if flags.config_dir:
        own = quoted(f"file://{Path(flags.config_dir).absolute()}")
        settings.append(f"hydra.searchpath=[{own}]")
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        return compose(config_name, settings)


def import_own_parts() -> None:
    """Import the user's own modules, named by `import=A,B` or the variable VIT_TRAIN_IMPORT.

    These modules, which may be in the current folder, register the user's own models, data sources
    and so on. No config and no checkpoint can make the program import a module. Raise ValueError if
    a module does not exist or cannot be imported.
    """
    for name in own_modules():
        if re.search(r"^\.|[/\\]|\.py$", name):
            raise ValueError(f"{IMPORT}{name} must name a module, not a file: import=my_parts")
        sys.path.append(os.getcwd())  # only now: it may be somebody else's folder
        try:
            import_module(name)
        except Exception as error:
            raise ValueError(f"{IMPORT}{name}: {type(error).__name__}: {error}") from error


def flag_parser() -> Any:
    """Return the parser of Hydra's flags.

    Python 3.14 checks help texts when they are added, and one of Hydra 1.3's is no text.
    """
    if sys.version_info < (3, 14):
        return get_args_parser()
    from unittest.mock import patch

    with patch.object(argparse.ArgumentParser, "_check_help"):
        return get_args_parser()


def version_line() -> str:
    return f"vit_train {version('vit-train')}"


def read_command(
    config_name: str,
    about: str,
    kind: type,
    groups: Collection[str],
    paths: Sequence[str],
    any_flag: bool = False,
) -> argparse.Namespace:
    """Parse the command line and return the flags; for --version and --help, print and exit.

    The flags include the settings, as `overrides`. `about` is the first part of the help; `kind` is
    the dataclass of the settings; `groups` and `paths` are as in `checked`. Raise ValueError for
    invalid settings or flags. Of Hydra's flags, only those in FLAGS are valid, unless `any_flag` is
    true.
    """
    if "--version" in sys.argv:
        print(version_line())
        sys.exit()
    parser = flag_parser()
    parser.error = refuse
    # Settings (`overrides`) may stand anywhere among the flags.
    flags: argparse.Namespace = parser.parse_intermixed_args(sys.argv[1:])
    if flags.experimental_rerun is not None:
        raise ValueError(
            "--experimental-rerun could run arbitrary code: use the command in summary.json"
        )
    for flag, value in vars(flags).items():
        if value and flag not in FLAGS and not any_flag:
            raise ValueError(f"--{flag.replace('_', '-')} is only for vit-train")
    settings = [each for each in flags.overrides if not each.startswith(IMPORT)]
    texts = [key for key, type_ in all_settings(kind).items() if type_ in TEXT]
    flags.overrides = list(checked(settings, paths, groups, [*texts, *paths]))
    keep_text([key.rpartition(".")[2] for key in texts])
    if flags.help:
        config = composed(config_name, flags)
        folders = [CONF_DIR, Path(flags.config_dir or CONF_DIR)]
        chosen = [f"{group}: {', '.join(choices(group, folders))}" for group in sorted(groups)]
        heading = ["\n== Groups, chosen by group=name =="] if groups else []
        settings = ["\n== Current settings (change them with key=value) ==", *described(config)]
        print(about, *heading, *chosen, *settings, sep="\n")
        print("\nAdd --cfg job to print only the settings.")
        sys.exit()
    return flags


def choices(group: str, folders: Sequence[Path]) -> list[str]:
    """Return a group's choices, sorted: the presets in these folders, and the registered names.

    Hydra's own list of choices would take 40 ms for each group.
    """
    files = (file for folder in folders for file in (folder / group).glob("*.yaml"))
    return sorted({*CHOSEN_BY_NAME.get(group, {}), *(file.stem for file in files)})


def described(config: DictConfig, indent: str = "") -> Iterator[str]:
    """Yield the lines of a config as YAML, with each help text in a comment above its setting."""
    kind: Any = OmegaConf.get_type(config)
    container: Any = OmegaConf.to_container(config)
    known = getattr(kind, "__dataclass_fields__", {})  # a mapping has none
    texts = {name: each.metadata.get("help", "") for name, each in known.items()}
    comment = f"{indent}# "
    for key, value in container.items():
        yield from textwrap.wrap(
            texts.get(key, ""), WIDTH, initial_indent=comment, subsequent_indent=comment
        )
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from described(config[key], f"{indent}  ")
        else:
            yield textwrap.indent(OmegaConf.to_yaml({key: value}).rstrip(), indent)


def console_command(
    settings: type[Config], groups: Mapping[str, str | None] = {}, paths: Sequence[str] = ()
) -> Callable[[Callable[[Config], object]], Callable[[], None]]:
    """Return a decorator that turns a function into a console command.

    The function takes an instance of the dataclass `settings`, whose values the command reads from
    the command line. The function `vit_eval` becomes the command `vit-eval`, and the function's
    docstring becomes the first part of the help. `groups` maps each group of conf/ that the command
    accepts to the default choice, or to None. `paths` are the settings whose values are paths. If
    the user gives a path without a key, the error message suggests the first of these settings.
    PyTorch is imported only within the function, so that invalid settings are reported at once.
    """

    def decorate(work: Callable[[Config], object]) -> Callable[[], None]:
        config_name, store = work.__name__, ConfigStore.instance()
        chosen = [{group: choice} for group, choice in groups.items()]
        schema = f"{config_name}_schema"
        store.store(name=schema, node=settings)
        store.store(name=config_name, node={"defaults": [schema, *chosen, "_self_"]})

        def main() -> None:
            with short_errors(config_name.replace("_", "-"), settings), shown_on_terminal():
                import_own_parts()
                register_schemas()
                flags = read_command(config_name, str(getdoc(work)), settings, groups, paths)
                config = composed(config_name, flags)
                if flags.cfg:
                    print(OmegaConf.to_yaml(config), end="")
                else:
                    require_known(config, settings)
                    work(to_config(config, settings))

        return main

    return decorate
