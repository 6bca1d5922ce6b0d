"""`vit-train resume=RUN`: the run's own settings, and the changes to them that are allowed."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from vit_train.config import TrainConfig, from_checkpoint, is_incidental, require_known
from vit_train.files.plain_values import flatten
from vit_train.runs.resume import own_settings


def resume_argument(arguments: Sequence[str]) -> str | None:
    """Return the value of the last `resume=` argument, parsed with Hydra's grammar, or None.

    Raise ValueError if it lists several runs.
    """
    given = [argument for argument in arguments if argument.startswith("resume=")]
    if not given:
        return None
    override = OverridesParser.create().parse_overrides(given)[-1]
    if override.is_sweep_override():
        raise ValueError(f"{given[-1]}: only one run can be resumed at a time")
    value = override.value()
    return None if value is None else str(value)


def resumed_config(
    folder: Path,
    checkpoint: Path | None,
    composed: DictConfig,
    overrides: Sequence[str],
    finished: bool,
) -> TrainConfig:
    """Return the run's config with the changes from the command line.

    Raise ValueError for a change that would make it a different run.
    """
    require_known(composed)
    settings = OmegaConf.create(own_settings(folder, checkpoint))
    OmegaConf.resolve(composed)
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    keys = [override.key_or_group for override in parsed if override.key_or_group != "resume"]
    own, requested = (
        dict(flatten(OmegaConf.to_container(config)))  # type: ignore[arg-type]
        for config in (settings, composed)
    )
    advice = "leave it out, or start a new run"
    if finished:
        advice = (
            f"a finished run stays as it is; init_from={folder} starts another with its encoder"
        )
    for key in keys:
        differing = [name for name in concerned(key, own) if own[name] != requested.get(name)]
        if differing:
            values = ", ".join(f"{name}={own[name]}" for name in differing[:3])
            raise ValueError(f"cannot change {key} when resuming (this run has {values}): {advice}")
    for key in filter(may_change, keys):
        OmegaConf.update(settings, key, OmegaConf.select(composed, key))
    return from_checkpoint(OmegaConf.to_container(settings))  # type: ignore[arg-type]


def concerned(key: str, settings: Iterable[str]) -> list[str]:
    """Return those settings that a key or a group sets and that may not change.

    An `experiment` may set any of them, so all are returned for it.
    """
    fixed = [name for name in settings if name != "resume" and not may_change(name)]
    below = [name for name in fixed if name == key or name.startswith(f"{key}.")]
    return below or ([] if may_change(key) else fixed)


def may_change(key: str) -> bool:
    """Return whether the setting changes no result, or changes it by rounding only.

    On a GPU another train.micro_batch draws different dropout, too.
    """
    return is_incidental(key) or key == "train.micro_batch"
