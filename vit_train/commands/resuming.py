"""`vit-train resume=RUN`: the run's own settings, and what may be changed about them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from vit_train.claim import CONFIG
from vit_train.config import TrainConfig, from_checkpoint, is_incidental, require_known
from vit_train.plain import read_config, read_json, require_config
from vit_train.report.flat import flatten


def split_path(resume: str) -> tuple[Path, Path | None]:
    """The run's folder, and the checkpoint to go on from where one is named.

    ValueError if there is no run.
    """
    path = Path(resume)
    folder = path.parent.parent if path.is_file() else path
    named = path if path.is_file() else None
    if not (named or newest_checkpoint(folder) or (folder / CONFIG).is_file()):
        raise ValueError(f"resume={resume}: there is no run in {folder} that could go on")
    return folder, named


def newest_checkpoint(folder: Path) -> Path | None:
    """The one to go on from; None where a run was ended before its first."""
    from vit_train.engine.checkpoint import generations  # brings torch, which --help can do without

    return next(iter(generations(folder / "checkpoints" / "last.pt")), None)


def asked_for(arguments: Sequence[str]) -> str | None:
    """What `resume=` says among the arguments, read with Hydra's grammar; the last one counts."""
    said = [each for each in arguments if each.startswith("resume=")]
    if not said:
        return None
    override = OverridesParser.create().parse_overrides(said)[-1]
    if override.is_sweep_override():
        raise ValueError(f"{said[-1]}: one run at a time can go on")
    value = override.value()
    return None if value is None else str(value)


def is_finished(folder: Path) -> bool:
    try:
        summary = read_json(folder / "summary.json")
    except (OSError, ValueError):
        return False
    return isinstance(summary, dict) and summary.get("status") == "finished"


def resumed_config(
    folder: Path, checkpoint: Path | None, composed: DictConfig, overrides: Sequence[str]
) -> TrainConfig:
    """The run's config with what the command line says otherwise.

    ValueError for changes that would make another run of it.
    """
    require_known(composed)
    settings = own_settings(folder, checkpoint)
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


def own_settings(folder: Path, checkpoint: Path | None) -> DictConfig:
    """Those in the folder or, if that file is lost, in the checkpoint."""
    path = folder / CONFIG
    try:
        if checkpoint is not None and not path.is_file():
            from vit_train.engine.checkpoint import read_checkpoint

            path = checkpoint
            stored = read_checkpoint(checkpoint).get("config")
        else:
            stored = OmegaConf.to_container(OmegaConf.create(read_config(path)))
        require_config(stored, str(path))
        return OmegaConf.create(stored)
    except (OmegaConfBaseException, YAMLError, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


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
