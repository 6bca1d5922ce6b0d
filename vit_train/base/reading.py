"""Plain values from untrusted files, bounded before any other code walks them.

A few hundred bytes can describe a value that takes forever to walk: mappings that hold the next
one twice, forty levels deep; YAML's aliases; a list that contains itself.
"""

import dataclasses
import difflib
import json
from pathlib import Path
from types import UnionType
from typing import IO, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

# Ample for a config with its 100 settings.
CONFIG_NODES = 2_000
DEPTH = 32
INTEGERS = range(-(2**63), 2**64)
PLAIN = (bool, int, float, str, type(None))


class Refused(ValueError):
    """A file of another kind than its name promises, or larger than such a file can be."""


def require_plain(value: Any, what: str, nodes: int, others: tuple[type, ...] = ()) -> None:
    """Raise Refused unless a value is plain: nested mappings and sequences of bounded size.

    They hold numbers, strings and None; `others` are further types of single values. A shared part
    counts wherever it occurs, so that whatever walks the value later is done after `nodes` steps,
    at most `DEPTH` deep.
    """
    count, waiting = 0, [(value, 0)]
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if count > nodes or depth > DEPTH:
            raise Refused(f"{what} holds too many values, or too deeply nested ones")
        if isinstance(node, dict):
            if not all(isinstance(key, str | int) for key in node):
                raise Refused(f"{what} has a key that is neither a string nor an integer")
            waiting += [(child, depth + 1) for child in (*node, *node.values())]
        elif isinstance(node, list | tuple):
            waiting += [(child, depth + 1) for child in node]
        elif isinstance(node, int) and node not in INTEGERS:
            raise Refused(f"{what} holds an integer of more than 64 bits")
        elif not isinstance(node, (*PLAIN, *others)):
            raise Refused(f"{what} holds a {type(node).__name__}, which is not a plain value")


def require_config(stored: Any, what: str) -> None:
    """Raise Refused for settings that are not plain or that hold an interpolation.

    Resolving `${oc.env:NAME}` would put the environment's secrets into a message.
    """
    require_plain(stored, what, CONFIG_NODES)
    if not isinstance(stored, dict):
        raise Refused(f"{what} holds no settings")
    if "${" in repr(stored):
        raise Refused(f"{what} holds an interpolation, ${{…}}: a run's settings are plain values")


def flatten(config: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Flatten {"model": {"depth": 6}} to [("model.depth", 6)].

    Values other than numbers and strings become JSON.
    """
    pairs: list[tuple[str, Any]] = []
    for key, value in config.items():
        if isinstance(value, dict):
            pairs += flatten(value, f"{prefix}{key}.")
        else:
            plain = isinstance(value, bool | int | float | str)
            pairs.append((prefix + key, value if plain else json.dumps(value)))
    return pairs


# Ample for a summary with a few thousand classes, and for a config with its 100 settings.
JSON_BYTES, CONFIG_BYTES = 4_000_000, 100_000
JSON_NODES = 1_000_000


def open_regular(path: Path) -> IO[bytes]:
    """Open a file for reading; raise Refused if it is not regular, OSError as `open` does."""
    if path.exists() and not path.is_file():
        raise Refused(f"{path} is not a regular file")
    return path.open("rb")


def near_path(path: Path) -> str:
    """Return ", did you mean …?" with the path most like a missing one in its folder, or ""."""
    near = difflib.get_close_matches(path.name, [each.name for each in path.parent.glob("*")], 1)
    return f", did you mean {path.with_name(near[0])}?" if near else ""


def read_text(path: Path, limit: int) -> str:
    """Return a file's text; raise Refused if it is not regular, UTF-8, or of `limit` bytes at most.

    A device may never end, and opening a pipe blocks until something writes into it.
    """
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise Refused(f"{path} is larger than {limit:,} bytes")
    try:
        return content.decode()
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
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if count > CONFIG_NODES or depth > DEPTH or getattr(event, "anchor", None):
                raise Refused(f"{path} has an alias (& or *) or too many or deeply nested values")
    except yaml.YAMLError as error:
        raise Refused(f"{path} cannot be read: {error}") from error
    return text


Kind = TypeVar("Kind")


def typed(kind: type[Kind], value: Any, name: str = "") -> Kind:
    """Return a value that is of a type, its parts included; raise Refused, naming the part, if not.

    `kind` may be a dataclass, list[…], dict[str, …], tuple[…], a union, Any or a class. A dataclass
    is made from a dict of its fields; those with a default may be absent. A float may be given as
    an int, a tuple as a list.
    """
    return _typed(kind, value, name)  # type: ignore[no-any-return]


def _typed(kind: Any, value: Any, name: str) -> Any:
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        exact = [each for each in arguments if each is type(value)]
        return _typed((exact or arguments)[0], value, name)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, _instance(value, dict, name), name)
    if origin is dict:
        parts = _instance(value, dict, name).items()
        return {key: _typed(arguments[1], each, f"{name}.{key}") for key, each in parts}
    if origin in (list, tuple):
        values = _instance(value, list if origin is list else list | tuple, name)
        alike = origin is list or arguments[1:] == (...,)
        kinds = arguments[:1] * len(values) if alike else arguments
        if len(values) != len(kinds):
            raise Refused(f"{name} must have {len(kinds)} values, not {len(values)}")
        pairs = enumerate(zip(kinds, values, strict=True))
        return origin(_typed(part, each, f"{name}[{index}]") for index, (part, each) in pairs)
    if kind is float and type(value) is int:
        return float(value)
    return _instance(value, kind, name)


def _dataclass(kind: Any, values: dict[str, Any], name: str) -> Any:
    hints, found = get_type_hints(kind), {}
    prefix = f"{name}." if name else ""
    for field in dataclasses.fields(kind):
        if field.name in values:
            found[field.name] = _typed(hints[field.name], values[field.name], prefix + field.name)
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise Refused(f"{prefix}{field.name} is missing")
    return kind(**found)


def _instance(value: Any, kind: Any, name: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        wanted = getattr(kind, "__name__", "list")
        raise Refused(f"{name[:80]} must be of the type {wanted}, not {type(value).__name__}")
    return value
