"""One family of inputs a file: `make(rng, place)` makes one input and tries it."""

import importlib
import pkgutil
import random
from collections.abc import Callable

from torture.place import Place

Generator = Callable[[random.Random, Place], None]


def generators() -> dict[str, Generator]:
    """By the names of their files."""
    names = [each.name for each in pkgutil.iter_modules(__path__)]
    return {name: importlib.import_module(f"{__name__}.{name}").make for name in names}
