"""The settings of an earlier run, for `resume=`, `extend=`, `fork=` and `config=`.

With `config=`, the command line may change any of the settings; with `resume=`, `extend=` and
`fork=`, only some of them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from vit_train.base.log import logger
from vit_train.base.reading import flatten, read_json, require_config, typed
from vit_train.base.text import reason
from vit_train.config.data import folder_of
from vit_train.config.fields import UsageError
from vit_train.config.run import (
    CHOSEN_BY_NAME,
    CONTINUED,
    TrainConfig,
    by_key,
    choice_of,
    declared,
    declared_by,
    from_checkpoint,
    keys_of,
    may_change,
    schema_of,
    values,
    with_settings,
)
from vit_train.trained.folder import (
    CONFIG,
    REQUESTED,
    finished_run,
    last_checkpoint,
    resumed_run,
    run_at,
)
from vit_train.trained.own_code import saved_code


def begun_run(
    folders: Iterable[Path], requested: TrainConfig, varied: Collection[str]
) -> tuple[Path, TrainConfig] | None:
    """Return the first of `folders` whose run was started with the `requested` settings and code.

    Also return the settings with which to resume it. Settings that alter nothing may differ, except
    those that the sweep has `varied`; those of `requested` are used. Return None if there is no
    such run.
    """
    from vit_train.run.folder import registered_code  # needs torch
    from vit_train.run.start import with_named_runs

    wanted = values(with_named_runs(requested, Path(), None))  # as in REQUESTED
    known = declared_by(asdict(requested))
    code = registered_code()
    for folder in folders:
        with suppress(ValueError):  # damaged, of another version, or of another model
            begun = values(from_checkpoint(read_settings(folder / REQUESTED)))
            differing = [key for key in wanted if wanted[key] != begun.get(key, ...)]
            if saved_code(folder) in ({}, code) and all(
                known.get(key, {}).get("alters") == "nothing" and key not in varied
                for key in differing
            ):
                config = from_checkpoint(own_settings(folder, last_checkpoint(folder)))
                return folder, with_settings(config, {key: wanted[key] for key in differing})
    return None


def rerun_config(composed: DictConfig, overrides: Sequence[str]) -> TrainConfig:
    """Return the settings of the run that `config=`, `fork=` or `extend=` names, with changes.

    The changes are the command line's `overrides`; `composed` is the config that Hydra composed
    from them. Raise ValueError if the run cannot be used in this way, or if the command line
    changes a setting that does not fit the run's saved state.
    """
    if composed.config is not None:
        path = run_at(Path(composed.config))
        settings = read_settings(path / REQUESTED if path.is_dir() else path)
        if earlier := settings.get("extend") or settings.get("fork"):
            logger.warning(f"{path} began from {earlier}, but the new run starts anew")
        return changed("config", settings | dict.fromkeys(CONTINUED), composed, overrides)
    if composed.fork is not None:
        folder, named = resumed_run(composed.fork, "fork")
        checkpoint = named or last_checkpoint(folder)
        if checkpoint is None:
            raise ValueError(
                f"fork={composed.fork}: this run has no checkpoint: use config={composed.fork} to "
                "start a new run with its settings"
            )
        settings = own_settings(folder, checkpoint) | {"fork": str(checkpoint), "extend": None}
        return changed("fork", settings, composed, overrides)
    folder = finished_run(composed.extend)
    settings = own_settings(folder, None) | {"extend": str(folder), "fork": None}
    config = changed("extend", settings, composed, overrides)
    if "optim.warmup_epochs" not in keys_of(overrides):
        scale = config.train.num_epochs / from_checkpoint(settings).train.num_epochs
        config.optim.warmup_epochs = round(config.optim.warmup_epochs * scale, 3)
    return config


def changed(
    argument: str, stored: dict[str, Any], composed: DictConfig, overrides: Sequence[str]
) -> TrainConfig:
    """Return the `stored` settings of a run, with the changes on the command line.

    `composed` is the config that Hydra composed from the command line's `overrides`. `argument`,
    one of CONTINUED, determines which settings may change. A choice that the run already has, such
    as optim=muon, changes nothing. Raise ValueError if the command line changes any other setting,
    or names an `experiment`, which would replace the settings.
    """
    OmegaConf.resolve(composed)
    own = dict(flatten(stored))
    same = [key for key in CHOSEN_BY_NAME if f"{key}={own.get(f'{key}.name')}" in overrides]
    keys = [key for key in keys_of(overrides) if key not in (argument, *same)]
    if "experiment" in keys and argument != "resume":
        raise UsageError(f"{argument}= and experiment= cannot be combined: use only one of them")
    require_changeable(argument, keys, own, composed)
    settings = OmegaConf.create(stored)
    distrust(settings, stored, keys)
    if "data.file" in keys and own.get("data.root") == folder_of(str(own.get("data.file"))):
        settings.data.root = ""  # a table's folder, which is now that of the new file
    known = declared()
    for key in keys:
        if may_change(key, argument, known):
            # The choices of a group have settings of their own, which are not merged.
            value = OmegaConf.select(composed, key)
            OmegaConf.update(settings, key, value, merge=key not in CHOSEN_BY_NAME)
    return from_checkpoint(OmegaConf.to_container(settings))  # type: ignore[arg-type]


def require_changeable(
    argument: str, keys: Iterable[str], own: Mapping[str, Any], composed: DictConfig
) -> None:
    """Raise UsageError if one of `keys` changes a setting of the run that `argument` keeps.

    `own` has the run's settings.
    """
    wanted = by_key(OmegaConf.to_container(composed))  # type: ignore[arg-type]
    known = declared()
    kept = [name for name in own if name != argument and not may_change(name, argument, known)]
    for key in keys:
        below = [name for name in kept if name == key or name.startswith(f"{key}.")]
        # A key without settings of its own, such as experiment, could change any of them.
        affected = below or ([] if may_change(key, argument, known) else kept)
        if differing := [name for name in affected if own[name] != wanted.get(name)]:
            shown = ", ".join(f"{name}={own[name]}" for name in differing[:3])
            can_fork = all(may_change(name, "fork", known) for name in differing)
            raise UsageError(
                f"{argument}= cannot change {key} (this run has {shown}): leave {key} out, or "
                f"start a new run: {'fork= or ' if can_fork else ''}config= with this run's folder"
            )


def distrust(settings: DictConfig, stored: dict[str, Any], keys: Collection[str]) -> None:
    """Disable downloads in a run's settings, and replace the URLs with the defaults.

    The run may come from somebody else, so its URLs are not trusted. The user's own runs need no
    download, because their images are already on disk. Raise ValueError if the run's
    data.max_pixels exceeds the default, and the command line does not set data.max_pixels. `keys`
    are the settings on the command line.
    """
    usual: Any = schema_of(stored).data
    data = settings.data
    known: Any = OmegaConf.merge(usual, data)
    limit = known.get("max_pixels", 0)
    if "data.max_pixels" not in keys and limit > usual.get("max_pixels", 0):
        raise ValueError(
            f"this run reads images of up to {limit:,} pixels, more than the default limit: if "
            f"you trust the images, add data={data.name} data.max_pixels={limit}"
        )
    data.download = False
    if "urls" in usual:
        data.urls = usual.urls


def own_settings(folder: Path, checkpoint: Path | None) -> dict[str, Any]:
    """Return the settings that a run uses, from its config.yaml or, without it, its checkpoint.

    Raise ValueError if the settings cannot be read.
    """
    path = folder / CONFIG
    if checkpoint is not None and not path.is_file():
        from vit_train.trained.checkpoint import Checkpoint

        return Checkpoint.load(checkpoint).config
    return read_settings(path)


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings in a YAML file, or in a run's summary, which is a JSON file.

    Raise ValueError if they cannot be read.
    """
    try:
        if path.suffix == ".json":
            summary = typed(dict[str, Any], read_json(path), "it")
            require_config(summary.get("config"), "its config")
            return summary["config"]  # type: ignore[no-any-return]
        stored: dict[str, Any] = OmegaConf.to_container(OmegaConf.load(path))  # type: ignore[assignment]
        require_config(stored, "it")
        if not choice_of(stored, "model"):
            raise ValueError("it states no model")
        return stored
    # PyYAML raises errors of any kind for a value that does not fit its tag, such as !!bool foo.
    except Exception as error:
        raise ValueError(
            f"{path} cannot be read: {reason(error)}. Settings are read from a run's folder, its "
            "config.yaml or a summary"
        ) from None
