"""Read JSON and YAML from untrusted files, and limit the size of the values.

A file of a few hundred bytes can describe a value that takes forever to traverse. Examples are a
list that contains itself, and forty nested mappings, each of which contains the next one twice.
YAML aliases can describe both.
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


class Refused(ValueError):
    """Raised for a file whose type, size or content is not allowed."""


def require_plain(value: Any, what: str, nodes: int) -> None:
    """Raise Refused unless a value consists of numbers, strings, None, mappings and sequences.

    Also raise Refused if there are more than `nodes` values in total, or values nested more than
    `DEPTH` levels deep. A value that occurs several times counts each time. Keys must be strings or
    integers. `what` is the name of `value` in the error message.
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
        elif not isinstance(node, int | float | str | None):
            raise Refused(
                f"{what} contains a {type(node).__name__}: only "
                "numbers, strings, null, lists and mappings are allowed"
            )


def require_config(stored: Any, what: str) -> None:
    """Raise Refused unless `stored` is a mapping of plain values without interpolations.

    An interpolation such as `${oc.env:NAME}` could put a secret from the environment into an error
    message. Plain values are those that `require_plain` allows.
    """
    require_plain(stored, what, CONFIG_NODES)
    if not isinstance(stored, dict):
        raise Refused(f"{what} contains no settings")
    if "${" in repr(stored):
        raise Refused(f"{what} contains an interpolation, ${{…}}: replace it with a value")


def flatten(config: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Flatten a nested config: {"model": {"depth": 6}} becomes [("model.depth", 6)].

    All values but numbers and booleans become text, as by `as_word`.
    """
    pairs: list[tuple[str, Any]] = []
    for key, value in config.items():
        if isinstance(value, dict):
            pairs += flatten(value, f"{prefix}{key}.")
        else:
            is_number = isinstance(value, int | float)
            pairs.append((f"{prefix}{key}", value if is_number else as_word(value)))
    return pairs


def as_word(value: object) -> str:
    """Return a setting's value as on the command line: text as it is, all else as compact JSON."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


# Ample for a summary with a few thousand classes, and for a config with its 100 settings.
JSON_BYTES, CONFIG_BYTES = 4_000_000, 100_000
JSON_NODES = 1_000_000


def open_regular(path: Path) -> IO[bytes]:
    """Open a regular file to read bytes.

    Raise Refused for a folder, a device or a pipe, and OSError if the file cannot be opened.
    """
    if path.exists() and not path.is_file():
        raise Refused(f"{path} is not a regular file")
    return path.open("rb")


def near_path(path: Path) -> str:
    """Return the hint ", did you mean PATH?" for a path that does not exist.

    PATH is in the same folder and has the most similar name. Return "" if no name is similar.
    """
    others = [each.name for each in path.parent.glob("*") if each != path]
    near = difflib.get_close_matches(path.name, others, 1)
    return f", did you mean {path.with_name(near[0])}?" if near else ""


def read_text(path: Path, limit: int) -> str:
    """Return a file's text; raise Refused if the file is not regular or exceeds `limit` bytes.

    Devices and pipes are refused because a device may be endless, and opening a pipe blocks until
    another process writes to the pipe. Bytes that are not valid UTF-8 become "�".
    """
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise Refused(f"{path} is larger than {limit:,} bytes")
    return content.decode(errors="replace")


def read_json(path: Path) -> Any:
    """Return the value in a JSON file; raise Refused if the file is too large or not valid JSON."""
    text = read_text(path, JSON_BYTES)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # such as an integer with thousands of digits
        raise Refused(f"{path} is damaged: {error}") from error
    require_plain(value, str(path), JSON_NODES)
    return value


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or {} if the file does not exist.

    Raise Refused if the file is too large, is not valid JSON, or contains anything but an object.
    """
    content = read_json(path) if path.exists() else {}
    if not isinstance(content, dict):
        raise Refused(f"{path} is not a JSON object")
    return content


def read_config(path: Path) -> str:
    """Return the text of a run's config.yaml; raise Refused if the text contains YAML aliases.

    An alias lets a short text describe a value of any size.
    """
    text = read_text(path, CONFIG_BYTES)
    if any(getattr(event, "anchor", None) for event in yaml.parse(text, yaml.SafeLoader)):
        raise Refused("it contains an alias (& or *): write the value out in place of the alias")
    return text


def typed(kind: Any, value: Any, name: str = "") -> Any:
    """Return `value` converted to the type `kind`; raise Refused if the value does not match.

    `kind` may be a dataclass, list[…], dict[str, …], tuple[…], a union, Any or a class. A dataclass
    is made from a dict of its fields; fields with a default may be missing. An int is accepted as a
    float, and a list as a tuple. `name` is the value's name in the error message.
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
    """Return an instance of the dataclass `kind`, made from a dict of field values.

    Ignore keys that are not fields. Raise Refused if a field without a default is missing.
    """
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
    """Return `value` if it is an instance of the class `kind`; otherwise raise Refused.

    A bool is not accepted as an int.
    """
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        wanted = getattr(kind, "__name__", "list")
        raise Refused(f"{name[:80]} must be of type {wanted}, not {type(value).__name__}")
    return value
