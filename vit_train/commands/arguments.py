"""The flags and settings that are typed, and the config that Hydra makes of them."""

import argparse
import re
from collections.abc import Collection, Sequence
from dataclasses import fields, is_dataclass
from os.path import exists  # false for a list that is too long for a path
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

from hydra import compose, initialize_config_dir
from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig

from vit_train.runs.config import CHOSEN_BY_NAME, CONF_DIR, GROUPS

GRAMMAR = "key=value; quote a value with special characters: key='a, b'"
SETTING = re.compile(r"[+~]{0,2}[A-Za-z_][\w./@-]*=.*", re.DOTALL)


def refuse(message: str) -> NoReturn:
    """Replace `error` of argparse, which would print the usage and end the process."""
    raise ValueError(message)


def read_flags(typed: Sequence[str]) -> argparse.Namespace:
    """Return Hydra's flags and, as `overrides`, the settings, which may stand anywhere among them.

    Raise ValueError for an unknown flag.
    """
    parser: Any = get_args_parser()
    parser.error = refuse
    flags: argparse.Namespace = parser.parse_intermixed_args(typed)
    if flags.experimental_rerun is not None:
        raise ValueError("--experimental-rerun could run any code: repeat the run's command")
    return flags


def checked(settings: Sequence[str], paths: Sequence[str], groups: Collection[str]) -> list[str]:
    """Return the settings for Hydra's grammar, with quotes around the values of these `paths`.

    The first of `paths` is suggested for an existing path without a key. Raise ValueError for an
    argument that is not a setting, and for a group that is not among the command's own `groups`.
    """
    for each in settings:
        if not SETTING.fullmatch(each):
            hint = f"did you mean {paths[0]}={each}?" if exists(each) else f"write {GRAMMAR}"
            raise ValueError(f"{each} is not a setting: {hint}")
        key, _, value = each.lstrip("+~").partition("=")
        if key in GROUPS and key not in groups and not value.startswith("{"):
            raise ValueError(
                f"{key}= cannot be set here: it comes from the checkpoint (--help lists the "
                "settings)"
            )
    return [quote_path(each, paths) for each in settings]


def quote_path(setting: str, paths: Sequence[str]) -> str:
    """Quote the value of a setting for Hydra's grammar if it is one of `paths` and exists.

    A ~ in front means the home folder, which shells leave as it is behind a key with a dot.
    """
    key, _, value = setting.partition("=")
    is_path = key in paths and (value.startswith("~") or exists(value))
    return f"{key}={quoted(Path(value).expanduser())}" if is_path else setting


def quoted(path: Path | str) -> str:
    """Quote a path for Hydra's grammar."""
    return QuotedString(str(path), Quote.single).with_quotes()


def composed(config_name: str, flags: argparse.Namespace) -> DictConfig:
    """Return the config that Hydra composes, with the user's own folder of presets, if any."""
    settings = list(flags.overrides)
    if flags.config_dir:
        own = quoted(f"file://{Path(flags.config_dir).absolute()}")
        settings.append(f"hydra.searchpath=[{own}]")
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        return compose(config_name, settings)


def all_settings(kind: type, prefix: str = "") -> set[str]:
    """Return all settings by their dotted names, whichever choices the groups have."""
    found, hints = set[str](), get_type_hints(kind)
    for name in (each.name for each in fields(kind)):
        found.add(prefix + name)
        hint = hints[name]
        if is_dataclass(hint):
            for choice in (hint, *CHOSEN_BY_NAME.get(name, {}).values()):
                if issubclass(choice, hint):  # type: ignore[arg-type]
                    found |= all_settings(choice, f"{prefix}{name}.")
    return found
