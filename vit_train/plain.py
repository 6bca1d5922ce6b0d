"""Plain values from files that somebody else may have made, bounded before anything walks them.

A few hundred bytes can describe a value that takes for ever to walk: mappings that hold the next
one twice, forty deep; YAML's aliases; a list that holds itself.
"""

import json
from pathlib import Path
from typing import Any

import yaml

from vit_train.files import Refused, read_text

# As many bytes as a summary with a few thousand classes has, and a config with its 100 settings.
JSON_BYTES, CONFIG_BYTES = 4_000_000, 100_000
JSON_NODES, CONFIG_NODES = 1_000_000, 2_000
DEPTH = 32
INTEGERS = range(-(2**63), 2**64)
PLAIN = (bool, int, float, str, type(None))


def require_plain(value: Any, what: str, nodes: int, others: tuple[type, ...] = ()) -> None:
    """Refuse all but nested mappings and sequences of numbers, words and None, of bounded size.

    `others` are more types of single values. A part that is shared counts wherever it occurs, so
    that whatever walks the value later is done after `nodes` steps, `DEPTH` deep.
    """
    count, waiting = 0, [(value, 0)]
    while waiting:
        each, depth = waiting.pop()
        count += 1
        if count > nodes or depth > DEPTH:
            raise Refused(f"{what} holds too many values, or too deeply nested ones")
        if isinstance(each, others):
            continue
        if isinstance(each, dict):
            if not all(isinstance(key, str | int) for key in each):
                raise Refused(f"{what} has a key that is neither a word nor an integer")
            waiting += [(child, depth + 1) for child in (*each, *each.values())]
        elif isinstance(each, list | tuple):
            waiting += [(child, depth + 1) for child in each]
        elif isinstance(each, int) and each not in INTEGERS:
            raise Refused(f"{what} holds an integer of more than 64 bits")
        elif not isinstance(each, PLAIN):
            raise Refused(f"{what} holds a {type(each).__name__}, which is not a plain value")


def require_config(stored: Any, what: str) -> None:
    """Refuse settings that are not plain, or that would be looked up when they are read.

    `${oc.env:NAME}` would put the environment's secrets into a message.
    """
    require_plain(stored, what, CONFIG_NODES)
    if not isinstance(stored, dict):
        raise Refused(f"{what} holds no settings")
    if "${" in repr(stored):
        raise Refused(f"{what} holds an interpolation, ${{…}}: a run's settings are plain values")


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
