"""`vit-train resume=RUN`: the run's own settings, and what may be changed about them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from vit_train.config import TrainConfig, from_checkpoint, is_incidental, require_known
from vit_train.files.plain import flatten
from vit_train.runs.resume import own_settings


def resume_argument(arguments: Sequence[str]) -> str | None:
    """What `resume=` says among the arguments, read with Hydra's grammar; the last one counts."""
    said = [each for each in arguments if each.startswith("resume=")]
    if not said:
        return None
    override = OverridesParser.create().parse_overrides(said)[-1]
    if override.is_sweep_override():
        raise ValueError(f"{said[-1]}: one run at a time can go on")
    value = override.value()
    return None if value is None else str(value)


def resumed_config(
    folder: Path, checkpoint: Path | None, composed: DictConfig, overrides: Sequence[str]
) -> TrainConfig:
    """The run's config with what the command line says otherwise.

    ValueError for changes that would make another run of it.
    """
    require_known(composed)
    settings = OmegaConf.create(own_settings(folder, checkpoint))
    OmegaConf.resolve(composed)
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    keys = [each.key_or_group for each in parsed if each.key_or_group != "resume"]
    has, asked = (dict(flatten(OmegaConf.to_container(each))) for each in (settings, composed))  # type: ignore[arg-type]
    for key in keys:
        differing = [each for each in concerned(key, has) if has[each] != asked.get(each)]
        if differing:
            own = ", ".join(f"{each}={has[each]}" for each in differing[:3])
            raise ValueError(
                f"resume: {key} would make it another run, which has {own}: leave it out, or "
                "start a new run"
            )
    for key in filter(may_change, keys):
        OmegaConf.update(settings, key, OmegaConf.select(composed, key))
    return from_checkpoint(OmegaConf.to_container(settings))  # type: ignore[arg-type]


def concerned(key: str, settings: Iterable[str]) -> list[str]:
    """The settings that a key or a group says something about, of those that may not change.

    Of an `experiment` that is all of them.
    """
    fixed = [each for each in settings if each != "resume" and not may_change(each)]
    below = [each for each in fixed if each == key or each.startswith(f"{key}.")]
    return below or ([] if may_change(key) else fixed)


def may_change(key: str) -> bool:
    """What changes no result, or by rounding alone; on a GPU micro_batch has other dropout, too."""
    return is_incidental(key) or key == "train.micro_batch"
