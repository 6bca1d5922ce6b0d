"""Arguments, checked against the schema of a command's settings before Hydra composes them."""

import argparse
import difflib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, get_args, get_type_hints

from hydra.core.override_parser.types import ChoiceSweep, Override
from omegaconf import OmegaConf
from omegaconf.errors import ValidationError

from vit_train.commands.overrides import is_sweep, parsed
from vit_train.runs.config import CHOSEN_BY_NAME, CONF_DIR, GROUPS

# The folder of the user's own presets, in Hydra's flags.
FLAGS = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
FLAGS.add_argument("--config-dir", "-cd")
# The requirement of each type, in words.
WORDS: dict[object, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a single word or a quoted text",
    list[int]: "a list of whole numbers, such as [1,2]",
    list[float]: "a list of numbers, such as [0.5,1]",
    list[str]: "a list, such as [A,B]",
    NoneType: "null",
}
# Settings that have other names in other libraries, where no similar name is the same setting.
OTHER_NAMES = {
    "model.drop_rate": "model.dropout",
    "model.drop_path_rate": "model.drop_path",
    "model.img_size": "data.image_size",
    "data.img_size": "data.image_size",
    "optim.learning_rate": "optim.lr",
    "train.lr": "optim.lr",
    "train.num_epochs": "train.epochs",
}


class Known(NamedTuple):
    """A setting's type, and the dataclass of which it is a field."""

    hint: Any
    owner: type


def schema(kind: type, prefix: str = "") -> dict[str, Known]:
    """Return all settings by their dotted names, whichever choices the groups have."""
    found, hints = {}, get_type_hints(kind)
    for name in names_of(kind):
        hint = hints[name]
        found[prefix + name] = Known(hint, kind)
        choices = [each for each in CHOSEN_BY_NAME.get(name, {}).values() if issubclass(each, hint)]
        for inner in choices or ([hint] if is_dataclass(hint) else []):
            found |= schema(inner, f"{prefix}{name}.")
    return found


def names_of(kind: Any) -> list[str]:
    return [each.name for each in fields(kind)]


def check(
    arguments: Sequence[str], flags: Sequence[str], kind: type, groups: Collection[str]
) -> None:
    """Raise ValueError for the first argument that is no setting, or that has a wrong value.

    The command's settings are those of the dataclass `kind`, with these groups.
    """
    known, folders = schema(kind), preset_folders(arguments, flags)
    # An experiment may be a sweep.
    sweeps = is_sweep(flags) or any(
        word in each for word in ("experiment=", "hydra.mode=") for each in arguments
    )
    for override in parsed(arguments):
        key = override.package or override.key_or_group.strip()
        if key.startswith("hydra") or is_own_group(key, folders):
            continue
        if override.is_sweep_override() and not sweeps:
            raise ValueError(
                f"{override.input_line} has several values: add -m to train with each, write a "
                "list as [A,B], or quote a text"
            )
        if override.is_delete():
            if key != "experiment":
                raise ValueError(f"a setting can be changed, but not removed ({key})")
            continue
        for value in values(override):
            if key in groups:
                require_choice(key, value, folders)
            elif key in GROUPS and not isinstance(value, dict):
                raise ValueError(
                    f"{key}= cannot be set here: it comes from the checkpoint (--help lists the "
                    "settings)"
                )
            else:
                require_fit(key, value, known)


def is_own_group(key: str, folders: Sequence[Path]) -> bool:
    """Check for a group that exists only in the user's own folders of presets."""
    return key not in ("", *GROUPS) and any((folder / key).is_dir() for folder in folders)


def preset_folders(arguments: Sequence[str], flags: Sequence[str]) -> list[Path]:
    """Return the folders of presets, the user's own among them."""
    added = [FLAGS.parse_known_args(flags)[0].config_dir]
    for override in parsed(each for each in arguments if each.startswith("hydra.searchpath=")):
        (places,) = values(override)
        added += [str(each).removeprefix("file://") for each in places]
    return [CONF_DIR, *(Path(each) for each in added if each)]


def require_choice(group: str, value: Any, folders: Sequence[Path]) -> None:
    """Raise ValueError unless the value is a choice of the group, or a list of them."""
    for name in value if isinstance(value, list) else [value]:
        if not isinstance(name, str):
            raise ValueError(f"{group} is chosen by a name, such as model=tiny")
        files = (folder / group / f"{name}.yaml" for folder in folders)
        if name not in CHOSEN_BY_NAME.get(group, {}) and not any(map(Path.is_file, files)):
            raise ValueError(no_such_choice(group, name, choices(group, folders)))


def values(override: Override) -> list[Any]:
    """Return the values that an argument gives, several in a sweep; [] for ranges."""
    value = override.value()
    if isinstance(value, ChoiceSweep):
        return [getattr(each, "text", each) for each in value.list]
    return [] if override.is_sweep_override() else [value]


def require_fit(key: str, value: Any, known: Mapping[str, Known]) -> None:
    """Raise ValueError for a setting that does not exist, or a value of another type."""
    if key not in known:
        raise ValueError(no_such_setting(key, known))
    if isinstance(value, dict):
        for name, inner in value.items():
            require_fit(f"{key}.{name}", inner, known)
        return
    hint, owner = known[key]
    if is_dataclass(hint):
        first = next(each for each in known if each.startswith(f"{key}.") and each[-5:] != ".name")
        raise ValueError(f"{key} is a group of settings: change one of them, such as {first}=VALUE")
    try:
        OmegaConf.update(OmegaConf.structured(owner), key.rpartition(".")[2], value)
    except ValidationError:
        given = value if isinstance(value, str) else json.dumps(value)
        options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
        words = " or ".join(WORDS.get(option, str(option)) for option in options)
        raise ValueError(f"{key}={given} must be {words}") from None


def no_such_setting(asked: str, known: Collection[str]) -> str:
    """Return the message for a setting that does not exist, with the one that may be meant."""
    group, _, name = asked.rpartition(".")
    kinds = CHOSEN_BY_NAME.get(group, {}).items()
    having = [choice for choice, kind in kinds if name in names_of(kind)]
    if having:
        return f"there is no setting {asked} here: {group}={' or '.join(having)} has it"
    same = [key for key in known if key.endswith(f".{name}") and name != "name"]
    similar = difflib.get_close_matches(asked, known, n=1, cutoff=0.75)
    near = [OTHER_NAMES[asked]] if OTHER_NAMES.get(asked) in known else same or similar
    hint = f"did you mean {' or '.join(near)}?" if near else "--help lists the settings"
    return f"there is no setting {asked}: {hint}"


def choices(group: str, folders: Sequence[Path]) -> list[str]:
    """Return the choices of a group: presets in these folders, and registered names."""
    files = (file for folder in folders for file in (folder / group).glob("*.yaml"))
    return sorted({*CHOSEN_BY_NAME.get(group, {}), *(file.stem for file in files)})


def no_such_choice(group: str, name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {group}={near[0]}?" if near else f"choose from: {', '.join(known)}"
    return f"there is no {group}={name}: {hint}"
