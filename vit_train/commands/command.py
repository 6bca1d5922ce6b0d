"""A console command whose settings are a dataclass, and its help."""

import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

import hydra
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from vit_train.commands.arguments import check, choices, preset_folders
from vit_train.commands.errors import short_errors
from vit_train.commands.overrides import is_sweep, quote_values, quoted, settings_and_flags
from vit_train.runs.config import CONF_DIR, register_schemas, typed

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
    register_command(config_name, settings, groups)

    @hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name=config_name)
    def job(composed: DictConfig) -> None:
        with short_errors(name):
            require_base(composed, settings, config_name)
            work(typed(composed, settings))

    def main() -> None:
        register_schemas()
        with short_errors(name):
            refuse_sweep(sys.argv[1:])
            sys.argv[1:] = quote_values(sys.argv[1:], paths)
            run_or_help(job, config_name, about, settings, groups)

    return main


def require_base(composed: DictConfig, settings: type, base: str) -> None:
    """Raise ValueError for a config by --config-name that does not build on the command's own."""
    if OmegaConf.get_type(composed) is not settings:
        name = HydraConfig.get().job.config_name
        raise ValueError(
            f"--config-name={name}: such a file must begin with 'defaults: [{base}, _self_]'; a "
            "run is repeated by the command in its summary.json, not by its config.yaml"
        )


def refuse_sweep(arguments: Sequence[str]) -> None:
    if is_sweep(arguments):
        raise ValueError(
            "only vit-train sweeps over settings (-m): run this once for each, or compare runs by "
            "vit-eval 'ckpt=[A,B]'"
        )


def register_command(config_name: str, settings: type, groups: Mapping[str, str | None]) -> None:
    """Register the config that Hydra composes for a command, which writes no files of its own."""
    store = ConfigStore.instance()
    store.store(name=f"{config_name}_schema", node=settings)
    defaults = [
        f"{config_name}_schema",
        *({group: choice} for group, choice in groups.items()),
        "_self_",
        {"override hydra/job_logging": "terminal"},
    ]
    job = {"name": config_name, "chdir": False}
    # A recipe may be a sweep.
    quiet = {"output_subdir": None, "run": {"dir": "."}, "job": job, "mode": "RUN"}
    store.store(name=config_name, node={"defaults": defaults, "hydra": quiet})
