"""`--help`: a command's purpose, its groups, and the current values of all its settings."""

import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from vit_train.commands.arguments import check, choices, preset_folders
from vit_train.commands.overrides import quoted, settings_and_flags
from vit_train.runs.config import CONF_DIR

WIDTH = 96


def run_or_help(
    job: Callable[[], object], config_name: str, about: str, kind: type, groups: Collection[str]
) -> None:
    """Check the arguments and run the job, or print its help or the version if they ask for it.

    `kind` is the dataclass of its settings, and `groups` are those that it has.
    """
    arguments, flags = settings_and_flags(sys.argv[1:])
    if "--version" in flags:
        print(version_line())
        return
    check(arguments, flags, kind, groups)
    if {"--help", "-h"} & set(flags):
        print_help(config_name, about, groups, arguments, flags)
        return
    sys.argv[1:] = [*arguments, *flags]
    job()


def print_help(
    config_name: str,
    about: str,
    groups: Collection[str],
    arguments: Sequence[str],
    flags: Sequence[str],
) -> None:
    folders = preset_folders(arguments, flags)
    added = ",".join(quoted(f"file://{folder.absolute()}") for folder in folders[1:])
    own = [each for each in arguments if not each.startswith("hydra.searchpath=")]
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        config = compose(config_name, [*own, f"hydra.searchpath=[{added}]"])
    print(about)
    if groups:
        print("\n== Groups, chosen by group=name ==")
    for group in sorted(groups):
        print(f"{group}: {', '.join(choices(group, folders))}")
    print("\n== Current settings (change them with key=value) ==")
    print(*described(config), sep="\n")
    print("\nAdd --cfg job to print the settings alone, --hydra-help for Hydra's own flags.")


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
