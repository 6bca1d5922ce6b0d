"""Read JSON files, and convert their values to the types that are expected."""

import difflib
import json
from dataclasses import is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


class Refused(ValueError):
    """Raised for a file whose type, size or content is not allowed."""


def require_config(stored: Any, what: str) -> None:
    """Raise Refused unless `stored` is a mapping without interpolations.

    An interpolation such as `${oc.env:NAME}` could put a secret from the environment into an error
    message. `what` is the name of `stored` in the error message.
    """
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
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), default=str)  # YAML may hold bytes


def near_path(path: Path) -> str:
    """Return the hint ", did you mean PATH?" for a path that does not exist.

    PATH is in the same folder and has the most similar name. Return "" if no name is similar.
    """
    others = [each.name for each in path.parent.glob("*") if each != path]
    near = difflib.get_close_matches(path.name, others, 1)
    return f", did you mean {path.with_name(near[0])}?" if near else ""


def read_json(path: Path) -> Any:
    """Return the value in a JSON file; raise Refused if the file is not valid JSON."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:  # such as an integer with thousands of digits
        raise Refused(f"{path} is damaged: {error}") from error


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or {} if the file does not exist.

    Raise Refused if the file is not valid JSON, or contains anything but an object.
    """
    content = read_json(path) if path.exists() else {}
    if not isinstance(content, dict):
        raise Refused(f"{path} is not a JSON object")
    return content


# The types of JSON values for types that JSON does not have.
STORED: dict[Any, Any] = {Any: object, tuple: list, float: int | float}


def typed(kind: Any, value: Any, name: str = "") -> Any:
    """Convert a JSON value to the type `kind`; raise Refused if the value does not match.

    `kind` may be a dataclass, list[X], dict[str, X], tuple[X, …] with values of one type, a union,
    Any or a class. A dataclass is made from a dict; keys that are not fields are ignored. `name` is
    the value's name in the error message.
    """
    origin = get_origin(kind) or kind
    arguments = get_args(kind)
    if origin in (Union, UnionType):
        return typed(type(value) if type(value) in arguments else arguments[0], value, name)
    if is_dataclass(kind):
        return dataclass_from(kind, typed(dict[str, Any], value, name), name)
    is_bool = isinstance(value, bool) and kind not in (bool, Any)  # which Python counts as an int
    if is_bool or not isinstance(value, STORED.get(origin, origin)):
        raise Refused(f"{name} must be of type {origin.__name__}, not {type(value).__name__}")
    if origin is dict:
        return {key: typed(arguments[1], each, f"{name}.{key}") for key, each in value.items()}
    if origin in (list, tuple):
        return origin(typed(arguments[0], each, f"{name}[{i}]") for i, each in enumerate(value))
    return float(value) if kind is float else value


def dataclass_from(kind: Any, values: dict[str, Any], name: str) -> Any:
    hints = get_type_hints(kind)
    found = {
        key: typed(hints[key], value, f"{name}.{key}".removeprefix("."))
        for key, value in values.items()
        if key in hints
    }
    try:
        return kind(**found)
    except TypeError as error:  # a field without a default is missing
        raise Refused(str(error)) from error
