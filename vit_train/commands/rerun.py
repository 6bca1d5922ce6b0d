"""The settings of an earlier run, for `resume=`, `extend=`, `fork=` and `config=`.

With `config=`, the command line may change any of the settings; with `resume=`, `extend=` and
`fork=`, only some of them.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from vit_train.base.reading import flatten, require_config
from vit_train.base.text import reason
from vit_train.config.model import ViTConfig, differences
from vit_train.config.run import (
    ADAMW_TUNING,
    CHOSEN_BY_NAME,
    FINE_TUNING,
    TrainConfig,
    as_saved,
    default_settings,
    from_checkpoint,
    keys_of,
    may_change,
    preset_urls,
    schema_of,
    with_settings,
    without_retired,
)
from vit_train.trained.folder import CONFIG, finished_run, last_checkpoint, resumed_run, run_at


def begun_run(
    folders: Sequence[Path], own: Path | None, config: TrainConfig, overrides: Sequence[str]
) -> tuple[Path, TrainConfig] | None:
    """Return the first of `folders` whose run has the settings `config`, and the run's config.

    The run in `own`, the folder of this job, may differ in settings that resume= may change, except
    the precision and the image files: a command with different ones is for a new run. A run in
    the folder of another job of the sweep must have the same settings throughout. Return None if no
    run has these settings.
    """
    from vit_train.run.train import with_named_runs

    config, keys = with_named_runs(config), keys_of(overrides)
    for folder in folders:
        try:
            begun = from_checkpoint(own_settings(folder, last_checkpoint(folder)))
            completed = completed_config(config, begun, keys)
        except (ValueError, KeyError):
            if folder == own:
                raise
            continue  # another job's run: damaged, of another version, or of another model
        if are_same(begun, completed, exactly=folder != own):
            return folder, completed
    return None


def completed_config(config: TrainConfig, begun: TrainConfig, keys: Sequence[str]) -> TrainConfig:
    """Return `config` with the settings that are known only once a run has begun.

    `begun` supplies the precision if it is auto, data.white_level and model.norm_eps if they are
    null, and the number of epochs if it was planned for train.minutes. If init_from= is among
    `keys`, the settings on the command line, `begun` also supplies the settings that are taken from
    a pretrained model, unless they are among `keys`.
    """
    if config.precision == "auto":
        config = replace(config, precision=begun.precision)
    for group, name in (("data", "white_level"), ("model", "norm_eps")):
        ours, theirs = getattr(config, group), getattr(begun, group)
        if type(ours) is type(theirs) and getattr(ours, name, "absent") is None:
            config = with_settings(config, {f"{group}.{name}": getattr(theirs, name)})
    if config.train.minutes is not None and config.train.minutes == begun.train.minutes:
        config = with_settings(config, {"train.epochs": begun.train.epochs})
    ours, theirs = config.model, begun.model
    if "init_from" in keys and isinstance(ours, ViTConfig) and isinstance(theirs, ViTConfig):
        # As in `fine_tuned`.
        taken: set[str] = set() if "model" in keys else {*differences(theirs, ours)}
        if not {"experiment", "config"} & {*keys}:  # a recipe sets these itself
            taken |= {"data.image_size", *FINE_TUNING, *ADAMW_TUNING}
        config = with_settings(config, {k: attrgetter(k)(begun) for k in taken.difference(keys)})
    return config


def are_same(one: TrainConfig, other: TrainConfig, exactly: bool) -> bool:
    """Return True if the settings are the same; see `begun_run`.

    If `exactly` is true, settings that resume= may change count, too.
    """
    ours, theirs = (dict(flatten(as_saved(asdict(each)))) for each in (one, other))
    places = ("data.root", "data.file") if ours["data.name"] in ("folder", "table") else ()
    counting = ("precision", *places)
    compared = (key for key in ours if exactly or key in counting or not may_change(key, "resume"))
    return all(ours[key] == theirs.get(key) for key in compared)


def extended_config(composed: DictConfig, overrides: Sequence[str]) -> TrainConfig:
    """Return the settings of the run that `extend=` names, with the changes on the command line.

    Unless the command line sets optim.warmup_epochs, scale the warm-up in proportion to the number
    of epochs. Raise ValueError if the run is not finished, or if the command line changes a setting
    that does not fit the run's saved state.
    """
    folder = finished_run(composed.extend)
    settings = own_settings(folder, None) | {"extend": str(folder), "fork": None}
    config = changed("extend", settings, composed, overrides)
    before, optim = from_checkpoint(settings), config.optim
    if optim.warmup_epochs == before.optim.warmup_epochs and "optim.warmup_epochs" not in keys_of(
        overrides
    ):
        optim.warmup_epochs = round(
            optim.warmup_epochs * config.train.epochs / before.train.epochs, 3
        )
    return config


def forked_config(composed: DictConfig, overrides: Sequence[str]) -> TrainConfig:
    """Return the settings of the run that `fork=` names, with the changes on the command line.

    Raise ValueError if the run has no checkpoint, or if the command line changes a setting that
    does not fit the run's saved state.
    """
    folder, named = resumed_run(composed.fork, "fork")
    checkpoint = named or last_checkpoint(folder)
    if checkpoint is None:
        raise ValueError(
            f"fork={composed.fork}: this run has no checkpoint: use config={composed.fork} to "
            "start a new run with its settings"
        )
    settings = own_settings(folder, checkpoint) | {"fork": str(checkpoint), "extend": None}
    return changed("fork", settings, composed, overrides)


def repeated_config(composed: DictConfig, overrides: Sequence[str]) -> TrainConfig:
    """Return the settings of the run that `config=` names, with the changes on the command line.

    Raise ValueError if the settings cannot be read.
    """
    path = run_at(Path(composed.config))
    settings = read_settings(path / CONFIG if path.is_dir() else path) | {"resume": None}
    return changed("config", settings, composed, overrides)


def changed(
    argument: str, stored: dict[str, Any], composed: DictConfig, overrides: Sequence[str]
) -> TrainConfig:
    """Return the `stored` settings of a run, with the changes on the command line.

    `composed` is the config that Hydra composed from the command line's `overrides`. `argument`,
    one of CONTINUED, determines which settings may change. A choice that the run already has, such
    as optim=muon, changes nothing. Raise ValueError if the command line changes any other setting,
    or names an `experiment`, which would replace the settings.
    """
    settings = OmegaConf.create(stored)
    OmegaConf.resolve(composed)
    own, requested = (
        dict(flatten(as_saved(OmegaConf.to_container(config))))  # type: ignore[arg-type]
        for config in (settings, composed)
    )
    same = [key for key in CHOSEN_BY_NAME if f"{key}={own.get(f'{key}.name')}" in overrides]
    keys = [key for key in keys_of(overrides) if key not in (argument, *same)]
    if "experiment" in keys and argument != "resume":
        raise ValueError(f"{argument}= and experiment= cannot be combined: use only one of them")
    fixed = [name for name in own if name != argument and not may_change(name, argument)]
    for key in keys:
        below = [name for name in fixed if name == key or name.startswith(f"{key}.")]
        # A key without settings of its own, such as experiment, could change any of them.
        affected = below or ([] if may_change(key, argument) else fixed)
        if differing := {name: own[name] for name in affected if own[name] != requested.get(name)}:
            raise ValueError(cannot_change(argument, key, differing))
    distrust(settings, stored, keys)
    if "data.file" in keys and own.get("data.root") == str(Path(str(own.get("data.file"))).parent):
        settings.data.root = ""  # a table's folder, which is now that of the new file
    for key in (key for key in keys if may_change(key, argument)):
        OmegaConf.update(
            settings,
            key,
            OmegaConf.select(composed, key),
            merge=key not in CHOSEN_BY_NAME,  # whose choices have settings of their own
        )
    return from_checkpoint(OmegaConf.to_container(settings))  # type: ignore[arg-type]


def cannot_change(argument: str, key: str, differing: dict[str, Any]) -> str:
    """Return the message for a setting `key` that `argument`, one of CONTINUED, cannot change.

    `differing` has the run's own values. Name the arguments with which a new run can change them.
    """
    values = ", ".join(f"{name}={value}" for name, value in list(differing.items())[:3])
    able = [
        f"{each}="
        for each in ("fork", "config")
        if key != "experiment" and all(may_change(name, each) for name in differing)
    ]
    how = f": {' or '.join(able)} with this run's folder" if able else ""
    return (
        f"{argument}= cannot change {key} (this run has {values}): leave {key} out, or start a "
        f"new run{how}"
    )


def distrust(settings: DictConfig, stored: dict[str, Any], keys: Sequence[str]) -> None:
    """Disable downloads in a run's settings, and replace the URLs with those of the preset.

    The run may come from somebody else, so its URLs are not trusted. The user's own runs need no
    download, because their images are already on disk. Raise ValueError if the run's
    data.max_pixels exceeds the default, and the command line does not set data.max_pixels. `keys`
    are the settings on the command line.
    """
    usual, data = default_settings(stored)["data"], settings.data
    known: Any = OmegaConf.merge(schema_of(stored), {"data": data}).data
    limit, most = known.get("max_pixels", 0), usual.get("max_pixels", 0)
    if "data.max_pixels" not in keys and limit > most:
        raise ValueError(
            f"this run reads images of up to {limit:,} pixels, more than the default limit: if "
            f"you trust the images, add data={data.name} data.max_pixels={limit}"
        )
    data.download = False
    if "urls" in usual:
        data.urls = preset_urls(data.name)


def own_settings(folder: Path, checkpoint: Path | None) -> dict[str, Any]:
    """Return the settings in a run's config.yaml or, if this file is missing, in the checkpoint.

    Raise ValueError if the settings cannot be read.
    """
    path = folder / CONFIG
    if checkpoint is not None and not path.is_file():
        from vit_train.trained.checkpoint import Checkpoint

        return without_retired(Checkpoint.load(checkpoint).config)
    return read_settings(path)


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings in a run's config.yaml; raise ValueError if they cannot be read."""
    try:
        stored: dict[str, Any] = OmegaConf.to_container(OmegaConf.load(path))  # type: ignore[assignment]
        require_config(stored, "it")
        return without_retired(stored)
    # PyYAML raises errors of any kind for a value that does not fit its tag, such as !!bool foo.
    except Exception as error:
        raise ValueError(f"{path} cannot be read: {reason(error)}") from None
