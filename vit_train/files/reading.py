"""Read regular files of bounded size, and from these plain values."""

import json
from pathlib import Path
from typing import IO, Any

import yaml

from vit_train.files.plain import CONFIG_NODES, DEPTH, Refused, require_plain

# As many as a summary with a few thousand classes has, and a config with its 100 settings.
JSON_BYTES, CONFIG_BYTES = 4_000_000, 100_000
JSON_NODES = 1_000_000


def read_bytes(path: Path, limit: int) -> bytes:
    """A regular file's content; Refused if it is not one or holds more than `limit` bytes.

    A device has no end, and opening a pipe waits for whoever writes into it.
    """
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise Refused(f"{path} is larger than {limit:,} bytes")
    return content


def open_regular(path: Path) -> IO[bytes]:
    """Open for reading; Refused for what is not a regular file, OSError as usual."""
    if path.exists() and not path.is_file():
        raise Refused(f"{path} is not a regular file")
    return path.open("rb")


def read_text(path: Path, limit: int) -> str:
    """The same as UTF-8; Refused, with the file's name, if it is something else."""
    try:
        return read_bytes(path, limit).decode()
    except UnicodeDecodeError as error:
        raise Refused(f"{path} is not text: {error}") from error


def read_json(path: Path) -> Any:
    """The value in a JSON file; Refused, with the file's name, for whatever is wrong with it."""
    text = read_text(path, JSON_BYTES)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # also of an integer with thousands of digits
        raise Refused(f"{path} is damaged: {error}") from error
    require_plain(value, str(path), JSON_NODES)
    return value


def read_config(path: Path) -> str:
    """A run's config.yaml, safe to be parsed; Refused, with the file's name, if it is not."""
    text = read_text(path, CONFIG_BYTES)
    depth = 0
    try:
        for count, event in enumerate(yaml.parse(text, yaml.SafeLoader)):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise Refused(f"{path} has an alias, & or *: a run's settings are plain values")
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if count > CONFIG_NODES or depth > DEPTH:
                raise Refused(f"{path} holds too many values, or too deeply nested ones")
    except yaml.YAMLError as error:
        raise Refused(f"{path} cannot be read: {error}") from error
    return text
