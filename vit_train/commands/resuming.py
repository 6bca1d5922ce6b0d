"""`vit-train resume=RUN`: the run's own settings, and what may be changed about them."""

import json
from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from vit_train.config import TrainConfig, from_checkpoint

# How often something is reported or saved, and the machine: these change no result, or by
# rounding alone. A name that ends with a dot stands for all below it.
MAY_CHANGE = (
    *("train.log_every", "train.max_minutes", "train.micro_batch", "checkpoint."),
    *("device", "data.root", "data.download", "data.urls"),
)


def split_path(resume: str) -> tuple[Path, Path | None]:
    """The run's folder and the checkpoint to go on from: the newest, or the one that is named.

    None where a run was ended before its first checkpoint. ValueError if there is no run.
    """
    path = Path(resume)
    folder = path.parent.parent if path.is_file() else path
    if not (folder / "config.yaml").is_file():
        raise ValueError(f"resume={resume}: there is no run in {folder} that could go on")
    if path.is_file():
        return folder, path
    from vit_train.engine.checkpoint import generations  # brings torch, which --help can do without

    return folder, next(iter(generations(folder / "checkpoints" / "last.pt")), None)


def asked_for(arguments: Sequence[str]) -> str | None:
    """What `resume=` says among the arguments, read with Hydra's grammar; the last one counts."""
    said = [each for each in arguments if each.startswith("resume=")]
    if not said:
        return None
    override = OverridesParser.create().parse_override(said[-1])
    if override.is_sweep_override():
        raise ValueError(f"{said[-1]}: one run at a time can go on")
    value = override.value()
    return None if value is None else str(value)


def is_finished(folder: Path) -> bool:
    try:
        summary = json.loads((folder / "summary.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(summary, dict) and summary.get("status") == "finished"


def resumed_config(folder: Path, composed: DictConfig, overrides: Sequence[str]) -> TrainConfig:
    """The config in the folder with what the command line says otherwise.

    ValueError for changes that would make another run of it.
    """
    path = folder / "config.yaml"
    try:
        settings = OmegaConf.load(path)
    except (OmegaConfBaseException, YAMLError, ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(settings, DictConfig):
        raise ValueError(f"{path} holds no settings")
    keys = [each.key_or_group for each in OverridesParser.create().parse_overrides(list(overrides))]
    refused = [key for key in keys if key != "resume" and not may_change(key)]
    if refused:
        raise ValueError(
            f"resume: {', '.join(refused)} would make it another run; only "
            f"{', '.join(each.removesuffix('.') for each in MAY_CHANGE)} may change"
        )
    for key in keys:
        if key != "resume":
            OmegaConf.update(settings, key, OmegaConf.select(composed, key))
    return from_checkpoint(OmegaConf.to_container(settings))  # type: ignore[arg-type]


def may_change(key: str) -> bool:
    return any(key == each or (each[-1] == "." and key.startswith(each)) for each in MAY_CHANGE)
