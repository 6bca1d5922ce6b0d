"""Paths on the command line, which may contain any character."""

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path


def quote_values(arguments: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Quote the value of each of these keys for Hydra's grammar if it is a path that exists.

    Raise ValueError for an existing path without a key, and suggest the first key.
    """
    result = []
    for before, argument in pairwise(["", *arguments]):
        key, sign, value = argument.partition("=")
        if not sign and argument and before[:1] != "-" and Path(argument).exists():
            raise ValueError(f"{argument} is not a setting: did you mean {keys[0]}={argument}?")
        exists = key in keys and value and Path(value).exists()
        result.append(f"{key}={quoted(value)}" if exists else argument)
    return result


def quoted(path: Path | str) -> str:
    """Quote the path for Hydra's grammar, where backslashes are special only before a quote."""
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", str(path))
    escaped = re.sub(r"(\\+)$", r"\1\1", escaped)
    return f"'{escaped}'"
