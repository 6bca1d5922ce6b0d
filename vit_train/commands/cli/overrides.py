"""Paths on the command line, whatever signs are in them."""

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path


def quote_values(arguments: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Where one of the keys names a path that exists, it is quoted for Hydra's grammar.

    ValueError for a path on its own: the first key is likely meant.
    """
    result = []
    for before, argument in pairwise(["", *arguments]):
        key, sign, value = argument.partition("=")
        if not sign and argument and before[:1] != "-" and Path(argument).exists():
            raise ValueError(f"{argument} is no setting: did you mean {keys[0]}={argument}?")
        exists = key in keys and value and Path(value).exists()
        result.append(f"{key}={quoted(value)}" if exists else argument)
    return result


def quoted(path: Path | str) -> str:
    """For Hydra's grammar, where backslashes count only before a quote."""
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", str(path))
    escaped = re.sub(r"(\\+)$", r"\1\1", escaped)
    return f"'{escaped}'"
