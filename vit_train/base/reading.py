"""Plain values from untrusted files: a value's size is checked before other code walks the value.

A few hundred bytes can describe a value that takes forever to walk. Examples are forty nested
mappings, each containing the next one twice, and a list that contains itself. YAML aliases can
describe both.
"""

import difflib
import json
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import IO, Any, Union, get_args, get_origin, get_type_hints

import yaml

# Ample for a config, which has 100 settings.
CONFIG_NODES = 2_000
DEPTH = 32
PLAIN = (bool, int, float, str, type(None))


class Refused(ValueError):
    """The kind, size or content of a file is not allowed."""


def require_plain(value: Any, what: str, nodes: int) -> None:
    """Raise Refused unless a value consists of numbers, strings, None, mappings and sequences.

    A value may have at most `nodes` parts, nested at most `DEPTH` deep. A part that occurs several
    times counts each time, because other code walks it each time.
    """
    count, waiting = 0, [(value, 0)]
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if count > nodes or depth > DEPTH:
            raise Refused(f"{what} contains too many values, or values nested too deeply")
        if isinstance(node, dict):
            if not all(isinstance(key, str | int) for key in node):
                raise Refused(f"{what} has a key that is neither a string nor an integer")
            waiting += [(child, depth + 1) for child in (*node, *node.values())]
        elif isinstance(node, list | tuple):
            waiting += [(child, depth + 1) for child in node]
        elif not isinstance(node, PLAIN):
            raise Refused(f"{what} contains a {type(node).__name__}, which is not a plain value")


def require_config(stored: Any, what: str) -> None:
    """Raise Refused for settings that are not plain or that contain an interpolation.

    An interpolation such as `${oc.env:NAME}` could put a secret from the environment into a
    message.
    """
    require_plain(stored, what, CONFIG_NODES)
    if not isinstance(stored, dict):
        raise Refused(f"{what} contains no settings")
    if "${" in repr(stored):
        raise Refused(f"{what} contains an interpolation, ${{…}}: replace it with a value")


def flatten(config: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Flatten {"model": {"depth": 6}} to [("model.depth", 6)].

    Convert values other than numbers and strings to JSON.
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
    """Open a file for reading; raise Refused if it is not regular, OSError if opening it fails."""
    if path.exists() and not path.is_file():
        raise Refused(f"{path} is not a regular file")
    return path.open("rb")


def near_path(path: Path) -> str:
    """Return ", did you mean PATH?" for a missing path, or "" if no existing path is similar."""
    others = [each.name for each in path.parent.glob("*") if each != path]
    near = difflib.get_close_matches(path.name, others, 1)
    return f", did you mean {path.with_name(near[0])}?" if near else ""


def read_text(path: Path, limit: int) -> str:
    """Return a file's text; raise Refused if the file is not regular or exceeds `limit` bytes.

    A device could be endless, and opening a pipe would block until something writes to it. Bytes
    that are not UTF-8 become "�".
    """
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise Refused(f"{path} is larger than {limit:,} bytes")
    return content.decode(errors="replace")


def read_json(path: Path) -> Any:
    """Return the value in a JSON file; raise Refused, naming the file, if the file is invalid."""
    text = read_text(path, JSON_BYTES)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # such as an integer with thousands of digits
        raise Refused(f"{path} is damaged: {error}") from error
    require_plain(value, str(path), JSON_NODES)
    return value


def read_object(path: Path) -> dict[str, Any]:
    """Return a file's JSON object, or {} if the file is missing; raise Refused if it is invalid."""
    content = read_json(path) if path.exists() else {}
    if not isinstance(content, dict):
        raise Refused(f"{path} is not a JSON object")
    return content


def read_config(path: Path) -> str:
    """Return the text of a run's config.yaml.

    Raise Refused for aliases, because they let a short text describe a value of any size.
    """
    text = read_text(path, CONFIG_BYTES)
    if any(getattr(event, "anchor", None) for event in yaml.parse(text, yaml.SafeLoader)):
        raise Refused("it contains an alias (& or *)")
    return text


def typed(kind: Any, value: Any, name: str = "") -> Any:
    """Convert a value to a type; raise Refused, naming the part, if a part does not match.

    `kind` may be a dataclass, list[…], dict[str, …], tuple[…], a union, Any or a class. A dataclass
    is made from a dict of its fields; fields with a default may be missing. An int is accepted as a
    float, and a list as a tuple.
    """
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        exact = [each for each in arguments if each is type(value)]
        return typed((exact or arguments)[0], value, name)
    if is_dataclass(kind):
        return dataclass_from(kind, instance(value, dict, name), name)
    if origin is dict:
        parts = instance(value, dict, name).items()
        return {key: typed(arguments[1], each, f"{name}.{key}") for key, each in parts}
    if origin in (list, tuple):
        values = instance(value, list if origin is list else list | tuple, name)
        alike = origin is list or arguments[1:] == (...,)
        kinds = arguments[:1] * len(values) if alike else arguments
        if len(values) != len(kinds):
            raise Refused(f"{name} must have {len(kinds)} values, not {len(values)}")
        pairs = enumerate(zip(kinds, values, strict=True))
        return origin(typed(part, each, f"{name}[{index}]") for index, (part, each) in pairs)
    if kind is float and type(value) is int:
        return float(value)
    return instance(value, kind, name)


def dataclass_from(kind: Any, values: dict[str, Any], name: str) -> Any:
    """Make a dataclass from its fields' values; raise Refused if a required value is missing."""
    for field in fields(kind):
        if field.name not in values and field.default is field.default_factory is MISSING:
            raise Refused(f"{name}.{field.name} is missing".removeprefix("."))
    hints = get_type_hints(kind)
    found = {
        key: typed(hints[key], value, f"{name}.{key}".removeprefix("."))
        for key, value in values.items()
        if key in hints
    }
    return kind(**found)


def instance(value: Any, kind: Any, name: str) -> Any:
    """Return a value if it is of this class (a bool is not an int); otherwise raise Refused."""
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        wanted = getattr(kind, "__name__", "list")
        raise Refused(f"{name[:80]} must be of type {wanted}, not {type(value).__name__}")
    return value
