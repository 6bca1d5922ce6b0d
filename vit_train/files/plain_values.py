"""Plain values from untrusted files, bounded before any other code walks them.

A few hundred bytes can describe a value that takes forever to walk: mappings that hold the next
one twice, forty levels deep; YAML's aliases; a list that contains itself.
"""

import json
from typing import Any

# Ample for a config with its 100 settings.
CONFIG_NODES = 2_000
DEPTH = 32
INTEGERS = range(-(2**63), 2**64)
PLAIN = (bool, int, float, str, type(None))


class Refused(ValueError):
    """A file that is not what its name says, or larger than such a file can be."""


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
        if isinstance(node, others):
            continue
        if isinstance(node, dict):
            if not all(isinstance(key, str | int) for key in node):
                raise Refused(f"{what} has a key that is neither a string nor an integer")
            waiting += [(child, depth + 1) for child in (*node, *node.values())]
        elif isinstance(node, list | tuple):
            waiting += [(child, depth + 1) for child in node]
        elif isinstance(node, int) and node not in INTEGERS:
            raise Refused(f"{what} holds an integer of more than 64 bits")
        elif not isinstance(node, PLAIN):
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
