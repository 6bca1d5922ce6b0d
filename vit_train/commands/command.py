"""A console command whose settings are a dataclass, and its help."""

import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from vit_train.base.log import shown_on_terminal
from vit_train.commands.arguments import check, choices, preset_folders
from vit_train.commands.errors import short_errors
from vit_train.commands.overrides import is_sweep, quote_values, quoted, settings_and_flags
from vit_train.runs.config import CONF_DIR, register_schemas, typed

WIDTH = 96


# Hydra's flags that commands without a sweep have, too.
FLAGS = ("--help", "-h", "--version", "--config-dir", "-cd", "--cfg", "-c")


def is_answered(
    config_name: str,
    about: str,
    kind: type,
    groups: Collection[str],
    arguments: Sequence[str],
    flags: Sequence[str],
) -> bool:
    """Check the arguments; print help or version if they ask for it, and return True then.

    `kind` is the dataclass of the command's settings, and `groups` are those that it has.
    """
    if "--version" in flags:
        print(version_line())
        return True
    check(arguments, flags, kind, groups)
    if not {"--help", "-h"} & set(flags):
        return False
    print(about)
    if groups:
        print("\n== Groups, chosen by group=name ==")
    folders = preset_folders(arguments, flags)
    for group in sorted(groups):
        print(f"{group}: {', '.join(choices(group, folders))}")
    print("\n== Current settings (change them with key=value) ==")
    print(*described(composed(config_name, arguments, flags)), sep="\n")
    print("\nAdd --cfg job to print the settings alone.")
    return True


def composed(config_name: str, arguments: Sequence[str], flags: Sequence[str]) -> DictConfig:
    """Return the config that Hydra composes, with the user's own folders of presets."""
    _, *added = preset_folders(arguments, flags)
    places = ",".join(quoted(f"file://{folder.absolute()}") for folder in added)
    own = [each for each in arguments if not each.startswith("hydra.searchpath=")]
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        return compose(config_name, [*own, f"hydra.searchpath=[{places}]"])


def version_line() -> str:
    try:
        return f"vit_train {version('vit-train')}"
    except PackageNotFoundError:  # a bare checkout
        return "vit_train, not installed"


def described(config: DictConfig, indent: str = "") -> Iterator[str]:
    """Yield the lines of a config as YAML, with the help text of each setting above it."""
    kind, container = OmegaConf.get_type(config), OmegaConf.to_container(config)
    assert is_dataclass(kind) and isinstance(container, dict)
    texts = {each.name: each.metadata.get("help", "") for each in fields(kind)}
    comment = f"{indent}# "
    for key, value in container.items():
        yield from textwrap.wrap(
            texts[str(key)], WIDTH, initial_indent=comment, subsequent_indent=comment
        )
        if isinstance(value, dict):
            yield f"{indent}{key!s}:"
            yield from described(config[key], f"{indent}  ")
        else:
            yield textwrap.indent(OmegaConf.to_yaml({key: value}).rstrip(), indent)


Config = TypeVar("Config")
NO_GROUPS: Mapping[str, str | None] = {}


def make_command(
    name: str,
    settings: type[Config],
    about: str,
    work: Callable[[Config], object],
    groups: Mapping[str, str | None] = NO_GROUPS,
    paths: Sequence[str] = (),
) -> Callable[[], None]:
    """Return the function behind a console command.

    It calls `work` with the settings that were typed. `about` begins its help. `groups` are the
    groups of conf/ that it has, each with its default. `paths` are the settings that are paths, the
    one that is most likely meant by a bare path first. `work` imports torch, so that mistakes are
    answered at once.
    """
    config_name = name.replace("-", "_")
    store = ConfigStore.instance()
    store.store(name=f"{config_name}_schema", node=settings)
    chosen = [{group: choice} for group, choice in groups.items()]
    defaults = [f"{config_name}_schema", *chosen, "_self_"]
    store.store(name=config_name, node={"defaults": defaults})

    def main() -> None:
        register_schemas()
        with short_errors(name), shown_on_terminal():
            arguments, flags = settings_and_flags(quote_values(sys.argv[1:], paths))
            require_flags(flags)
            if is_answered(config_name, about, settings, groups, arguments, flags):
                return
            config = composed(config_name, arguments, flags)
            if {"--cfg", "-c"} & set(flags):
                print(OmegaConf.to_yaml(config), end="")
            else:
                work(typed(config, settings))

    return main


def require_flags(flags: Sequence[str]) -> None:
    """Raise ValueError for flags that only vit-train has."""
    if is_sweep(flags):
        raise ValueError(
            "only vit-train sweeps over settings (-m): run this once for each, or compare runs by "
            "vit-eval 'ckpt=[A,B]'"
        )
    for flag in (each.partition("=")[0] for each in flags if each.startswith("-")):
        if flag not in FLAGS:
            raise ValueError(f"{flag} is for vit-train alone")
