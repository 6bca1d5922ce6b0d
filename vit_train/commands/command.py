"""Console commands: read a command's settings from the command line, and print its help."""

import argparse
import os
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from inspect import cleandoc
from os.path import exists  # false for a list that is too long to be a path
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn

import yaml
from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.conf import HydraConf
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig, OmegaConf

from vit_train.base.log import shown_on_terminal
from vit_train.commands.errors import GRAMMAR, require_known, short_errors
from vit_train.config.fields import UsageError
from vit_train.config.run import (
    CHOSEN_BY_NAME,
    CONF_DIR,
    CONTINUED,
    GROUPS,
    IMPORT,
    Config,
    declared,
    register_schemas,
    to_config,
)
from vit_train.trained.folder import holds_run
from vit_train.trained.own_code import file_of, is_own, own_code, own_modules

# The types of settings that hold text, and settings of other types that hold text.
TEXT = (str, str | None, list[str])
PATHS = ("ckpt", "images", "hydra.run.dir", "hydra.sweep.dir")
# The parts of a value: quoted texts, and what is between quotes, commas and brackets.
PARTS = re.compile(
    r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|(?!\s)(?:\\.|[^,'"\[\](){}\\])+(?<!\s)"""
)
# Parts that begin with ~, or that Hydra may read as a number, true, false or null, and write
# differently as text: 0.10 becomes 0.1. Whole numbers stay the same, and null stands for no value.
ALTERED = re.compile(r"(?!\d+$|null$)(?i:~.*|[+-]?\.?\d[\w.+-]*|[+-]?(?:inf|nan)|true|false|null)")
SETTING = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@-]*=.*", re.DOTALL)
WIDTH = 96
# Hydra's flags that also make sense for commands without sweeps.
FLAGS = ("overrides", "help", "config_dir", "cfg")


def refuse(message: str) -> NoReturn:
    """Raise UsageError; argparse's own `error` would print the usage and exit."""
    raise UsageError(message)


# Trains two combinations of settings with as many seeds as a test needs; see sweep.py.
AUTO = "seed=auto"


def checked(
    settings: Sequence[str], path: str, groups: Collection[str], texts: Collection[str]
) -> Iterator[str]:
    """Check that the settings have the form key=value; yield them with quoted texts.

    `texts` names the settings that hold text; see `as_text`. `groups` names the groups that the
    command accepts. Raise UsageError for any other group, and for an argument without the form
    key=value. If that argument is an existing path, the message suggests `path` as the key.
    """
    for each in settings:
        if not SETTING.fullmatch(each):
            key = "ckpt" if path == "images" and holds_run(Path(each)) else path
            hint = f"did you mean {key}={each}?" if exists(each) else f"write {GRAMMAR}"
            refuse(f"{each} is not a setting: {hint}")
        key, _, value = each.lstrip("+~").partition("=")
        if key in GROUPS and key not in groups and not value.startswith("{"):
            usual = "it comes from the checkpoint or is not used (--help lists the settings)"
            hint = f"did you mean {key}.name={value}?" if f"{key}.name" in texts else usual
            refuse(f"{key}= cannot be set here: {hint}")
        if key in groups and value == "null":
            refuse(f"{key}= cannot be null: leave it out, or choose a name that --help lists")
        yield each.removesuffix(value) + as_text(value) if key in texts else each


def quoted(text: Path | str) -> str:
    """Put text in single quotes, with special characters escaped, for Hydra's grammar."""
    return QuotedString(str(text), Quote.single).with_quotes()


def as_text(value: str) -> str:
    """Quote a value that is an existing path, or else its parts that Hydra would alter.

    A ~ at the beginning of the path or of a part is replaced with the home folder, because shells
    do not expand ~ after a key with a dot. The parts, such as ~/run, 0.10 or true, may be those of
    a list, or the values of a sweep.
    """
    whole = os.path.expanduser(value)
    if exists(whole):
        return quoted(whole)
    return PARTS.sub(
        lambda part: quoted(os.path.expanduser(part[0])) if ALTERED.fullmatch(part[0]) else part[0],
        value,
    )


def keep_text(names: Sequence[str]) -> None:
    """Make YAML files keep the values of the settings `names` as text: name: 0.10 is "0.10".

    Only null stays null.
    """

    def construct_map(loader: Any, node: yaml.MappingNode) -> object:
        for key, value in node.value:
            if key.value in names and value.tag.endswith((":bool", ":int", ":float")):
                value.tag = "tag:yaml.org,2002:str"
        return loader.construct_yaml_map(node)

    yaml.constructor.SafeConstructor.add_constructor("tag:yaml.org,2002:map", construct_map)


def composed(config_name: str, flags: argparse.Namespace, hydra: bool = False) -> DictConfig:
    """Compose the config from presets and the settings on the command line.

    Hydra also looks for presets in the folder given by --config-dir. With `hydra`, the config
    includes Hydra's own settings.
    """
    settings = list(flags.overrides)
    if flags.config_dir:
        own = quoted(f"file://{Path(flags.config_dir).absolute()}")
        settings.append(f"hydra.searchpath=[{own}]")
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        return compose(config_name, settings, return_hydra_config=hydra)


def is_named(settings: HydraConf) -> bool:
    """Return True if the user has named the folder of a run, given Hydra's settings."""
    return any(each.startswith("hydra.run.dir=") for each in settings.overrides.hydra)


def import_own_parts() -> None:
    """Import the user's own modules, named by `import=A,B` or the variable VIT_TRAIN_IMPORT.

    These modules, which may be in the current folder, register the user's own models, data sources
    and so on. No config and no checkpoint can make the program import a module. Raise UsageError if
    there is no such module, or if a library's module of this name hides it. The files of the
    modules are read at once, because they may be edited before the run copies them.
    """
    for name in own_modules():
        if re.search(r"^\.|[/\\]|\.py$", name):
            refuse(f"{IMPORT}{name} must name a module, not a file: import=my_parts")
        sys.path.append(os.getcwd())  # only now: it may be somebody else's folder
        try:
            import_module(name)
        except (ModuleNotFoundError, SyntaxError) as error:
            if not f"{name}.".startswith(f"{getattr(error, 'name', name)}."):  # it imports another
                raise
            raise UsageError(f"{IMPORT}{name}: {error}") from None
        path = name.replace(".", "/")
        is_here = exists(f"{path}.py") or exists(f"{path}/__init__.py")
        if is_here and not is_own(file_of(sys.modules[name])):
            refuse(f"{IMPORT}{name} is a module of Python or of a library: rename your {name}")
    own_code()


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
    path: str,
) -> argparse.Namespace:
    """Parse the command line and return the flags; for --version and --help, print and exit.

    The flags include the settings, as `overrides`. `about` is the first part of the help; `kind` is
    the dataclass of the settings; `groups` and `path` are as in `checked`. The user's own modules
    are imported first. Raise UsageError for invalid settings or flags. Of Hydra's flags, all are
    valid for vit-train, and those in FLAGS for other commands.
    """
    import_own_parts()
    if groups:
        register_schemas()
    if "--version" in sys.argv:
        print(version_line())
        sys.exit()
    parser = flag_parser()
    parser.error = lambda message: refuse(f"{message} (settings are written as {GRAMMAR})")
    # Settings (`overrides`) may stand anywhere among the flags.
    flags: argparse.Namespace = parser.parse_intermixed_args(sys.argv[1:])
    if flags.experimental_rerun is not None:
        refuse("--experimental-rerun could run arbitrary code: use the command in summary.json")
    for flag, value in vars(flags).items():
        if value and flag not in FLAGS and config_name != "train":
            refuse(f"--{flag.replace('_', '-')} is only for vit-train")
    if flags.config_dir and not os.path.isdir(flags.config_dir):
        refuse(f"--config-dir={flags.config_dir}: there is no such folder")
    settings = [each for each in flags.overrides if not each.startswith(IMPORT)]
    texts = [key for key, each in declared(kind).items() if each["type"] in TEXT]
    flags.overrides = list(checked(settings, path, groups, [*texts, *PATHS]))
    keep_text([key.rpartition(".")[2] for key in texts])
    if flags.help:
        config = composed(config_name, flags)
        print(about)
        print_settings(config, groups, flags.config_dir)
        sys.exit()
    return flags


def print_settings(config: DictConfig, groups: Collection[str], own_presets: str | None) -> None:
    """Print the choices of the groups, and a config with the help text of each setting."""
    if groups:
        print("\n== Groups, chosen by group=name ==")
    for group in sorted(groups):
        print(f"{group}: {', '.join(choices(group, own_presets))}")
    print("\n== Current settings (change them with key=value) ==", *described(config), sep="\n")
    print("\nAdd --cfg job to print only the settings.")


def choices(group: str, own_presets: str | None = None) -> list[str]:
    """Return a group's choices, sorted: registered names, and presets, also in the user's folder.

    Hydra's own list of choices would take 40 ms for each group.
    """
    folders = (CONF_DIR, Path(own_presets or CONF_DIR))
    files = (file for folder in folders for file in (folder / group).glob("*.yaml"))
    return sorted({*CHOSEN_BY_NAME.get(group, {}), *(file.stem for file in files)})


def described(config: DictConfig, indent: str = "") -> Iterator[str]:
    """Yield the lines of a config as YAML, with each help text in a comment above its setting."""
    known = getattr(OmegaConf.get_type(config), "__dataclass_fields__", {})  # a mapping has none
    container: Any = OmegaConf.to_container(config)
    comment = f"{indent}# "
    for key, value in container.items():
        text = known[key].metadata.get("help", "") if key in known else ""
        yield from textwrap.wrap(text, WIDTH, initial_indent=comment, subsequent_indent=comment)
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from described(config[key], f"{indent}  ")
        else:
            yield textwrap.indent(OmegaConf.to_yaml({key: value}).rstrip(), indent)


def console_command(
    about: str,
    work: str | Callable[[Config], object],
    settings: type[Config],
    path: str,
    groups: Mapping[str, str | None] = {},
) -> Callable[[], None]:
    """Return a console command, whose help begins with `about`, which begins with its name.

    The command reads the values of the dataclass `settings` from the command line, and then calls
    the function `work`, or the function at this place, such as "module:name", which is imported
    only then. `path` is the setting that the error message suggests if the user gives a path
    without a key. `groups` maps each group of conf/ that the command accepts to the default choice,
    or to None.
    """
    name = about.partition(":")[0]
    chosen = [{group: choice} for group, choice in groups.items()]
    store = ConfigStore.instance().store
    store(name=f"{name}_schema", node=settings)
    store(name=name, node={"defaults": [f"{name}_schema", *chosen, "_self_"]})

    def main() -> None:
        with short_errors(name, settings), shown_on_terminal():
            flags = read_command(name, cleandoc(about), settings, groups, path)
            config = composed(name, flags)
            if flags.cfg:
                print(OmegaConf.to_yaml(config), end="")
            else:
                require_known(config, settings)
                for key in CONTINUED:
                    if "experiment" in groups and config.get(key) is not None:
                        refuse(f"{key}= is only for vit-train: {name} describes new models")
                call = resolve_name(work) if isinstance(work, str) else work
                call(to_config(config, settings))

    return main
