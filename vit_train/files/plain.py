"""Plain values from files that somebody else may have made, bounded before anything walks them.

A few hundred bytes can describe a value that takes for ever to walk: mappings that hold the next
one twice, forty deep; YAML's aliases; a list that holds itself.
"""

import json
from typing import Any

# As many values as a config with its 100 settings has, with room.
CONFIG_NODES = 2_000
DEPTH = 32
INTEGERS = range(-(2**63), 2**64)
PLAIN = (bool, int, float, str, type(None))


class Refused(ValueError):
    """A file that is not what its name says, or that is larger than it can be."""


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


def flatten(config: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """{"model": {"depth": 6}} → [("model.depth", 6)]; what is no plain value becomes JSON."""
    pairs: list[tuple[str, Any]] = []
    for key, value in config.items():
        if isinstance(value, dict):
            pairs += flatten(value, f"{prefix}{key}.")
        else:
            plain = isinstance(value, bool | int | float | str)
            pairs.append((prefix + key, value if plain else json.dumps(value)))
    return pairs
