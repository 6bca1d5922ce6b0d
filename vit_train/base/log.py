"""Log lines, on the terminal and in a file."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

from vit_train.base.text import PrintableFormatter
from vit_train.base.writing import open_to_append


@contextlib.contextmanager
def shown_on_terminal() -> Iterator[None]:
    """Print the package's log lines within the block, and other libraries' warnings."""
    logger = logging.getLogger("vit_train")
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        with logged_by(logging.StreamHandler(sys.stdout), "%(message)s"):
            yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def logged_to(path: Path) -> Iterator[None]:
    """Append all log lines within the block, with their times, to this file."""
    with (
        open_to_append(path) as file,
        logged_by(logging.StreamHandler(file), "%(asctime)s %(message)s"),
    ):
        yield


@contextlib.contextmanager
def logged_by(handler: logging.Handler, line: str) -> Iterator[None]:
    handler.setFormatter(PrintableFormatter(line))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
