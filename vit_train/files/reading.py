"""Reading of regular files of bounded size, and of plain values from them."""

import contextlib
import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import yaml

from vit_train.files.plain_values import CONFIG_NODES, DEPTH, Refused, require_plain

# Ample for a summary with a few thousand classes, and for a config with its 100 settings.
JSON_BYTES, CONFIG_BYTES = 4_000_000, 100_000
JSON_NODES = 1_000_000


def read_bytes(path: Path, limit: int) -> bytes:
    """Return a file's content; raise Refused if it is not regular or exceeds `limit` bytes.

    A device may never end, and opening a pipe blocks until something writes into it.
    """
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise Refused(f"{path} is larger than {limit:,} bytes")
    return content


@contextlib.contextmanager
def open_regular(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading; raise Refused if it is not regular, OSError as `open` does.

    An error of reading, as of a bad disk, names the file, too.
    """
    if path.exists() and not path.is_file():
        raise Refused(f"{path} is not a regular file")
    with path.open("rb") as file, naming(path):
        yield file


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an OSError of the block that names no file name this one."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def near_path(path: Path) -> str:
    """Return ", did you mean …?" with the existing path that is spelled most like a missing one.

    Only its first folder or file that is missing is looked for. Return "" if there is none like it.
    """
    missing = next((each for each in (path, *path.parents) if each.parent.is_dir()), path)
    names = [entry.name for entry in missing.parent.iterdir()] if missing.parent.is_dir() else []
    for near in difflib.get_close_matches(missing.name, names):
        if (found := missing.with_name(near) / path.relative_to(missing)).exists():
            return f", did you mean {found}?"
    return ""


def read_text(path: Path, limit: int) -> str:
    """Return a file's content as text; raise Refused, naming the file, if it is not UTF-8."""
    try:
        return read_bytes(path, limit).decode()
    except UnicodeDecodeError as error:
        raise Refused(f"{path} is not text: {error}") from error


def read_json(path: Path) -> Any:
    """Return the value in a JSON file; raise Refused, naming the file, if anything is wrong."""
    text = read_text(path, JSON_BYTES)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # such as an integer of thousands of digits
        raise Refused(f"{path} is damaged: {error}") from error
    require_plain(value, str(path), JSON_NODES)
    return value


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, empty if there is no such file; raise Refused as above."""
    content = read_json(path) if path.exists() else {}
    if not isinstance(content, dict):
        raise Refused(f"{path} is not a JSON object")
    return content


def read_config(path: Path) -> str:
    """Return the text of a run's config.yaml.

    Raise Refused, naming the file, if it is not safe to parse.
    """
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
