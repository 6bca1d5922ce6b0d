"""Paths on the command line, whatever signs are in them."""

import re
from collections.abc import Sequence
from pathlib import Path


def taken_literally(arguments: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Where one of the keys names a path that exists, it is quoted for Hydra's grammar."""
    result = []
    for argument in arguments:
        key, _, value = argument.partition("=")
        exists = key in keys and value and Path(value).exists()
        result.append(f"{key}={quoted(value)}" if exists else argument)
    return result


def quoted(path: Path | str) -> str:
    """For Hydra's grammar, where backslashes count only before a quote."""
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", str(path))
    escaped = re.sub(r"(\\+)$", r"\1\1", escaped)
    return f"'{escaped}'"
