"""The log in a run's folder: the terminal's messages, with the time of each."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

from vit_train.files.writing import open_to_append
from vit_train.text import PrintableFormatter


@contextlib.contextmanager
def shown_on_terminal() -> Iterator[None]:
    """Show what is logged within the block as the commands do.

    A program that has set up logging decides itself where it goes.
    """
    logger, root = logging.getLogger("vit_train"), logging.getLogger()
    level = logger.level
    if level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    handler = None
    if not root.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(PrintableFormatter("%(message)s"))
        root.addHandler(handler)
    try:
        yield
    finally:
        logger.setLevel(level)
        if handler is not None:
            root.removeHandler(handler)


@contextlib.contextmanager
def logged_to(path: Path) -> Iterator[None]:
    """Add everything that is logged within the block to this file."""
    with open_to_append(path) as file:
        handler = logging.StreamHandler(file)
        handler.setFormatter(PrintableFormatter("%(asctime)s %(message)s"))
        root = logging.getLogger()
        root.addHandler(handler)
        try:
            yield
        finally:
            root.removeHandler(handler)
