"""A console command whose settings are a dataclass."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from vit_train.commands.errors import short_errors
from vit_train.commands.help import run_or_help
from vit_train.commands.overrides import is_sweep, quote_values
from vit_train.runs.config import CONF_DIR, register_schemas, typed

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
