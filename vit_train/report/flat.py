"""Nested settings as pairs of a dotted key and a plain value."""

import json
from typing import Any


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
