"""Values from a file as the types that a dataclass declares."""

import dataclasses
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from vit_train.files.plain_values import Refused

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
        if value is None and NoneType in arguments:
            return None
        options = [each for each in arguments if each is not NoneType]
        exact = [each for each in options if each is type(value)]
        return _typed((exact or options)[0], value, name)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, _instance(value, dict, name), name)
    if origin is dict:
        parts = _instance(value, dict, name).items()
        return {key: _typed(arguments[1], each, f"{name}.{key}") for key, each in parts}
    if origin is list:
        parts = enumerate(_instance(value, list, name))
        return [_typed(arguments[0], each, f"{name}[{index}]") for index, each in parts]
    if origin is tuple:
        values = _instance(value, list | tuple, name)
        kinds = arguments[:1] * len(values) if arguments[1:] == (...,) else arguments
        if len(values) != len(kinds):
            raise Refused(f"{name} must have {len(kinds)} values, not {len(values)}")
        pairs = enumerate(zip(kinds, values, strict=True))
        return tuple(_typed(part, each, f"{name}[{index}]") for index, (part, each) in pairs)
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
