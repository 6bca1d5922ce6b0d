"""Logging on the terminal and to a file."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

from vit_train.base.text import printable
from vit_train.base.writing import open_to_append

# The package's messages to its user.
logger = logging.getLogger("vit_train")


def shown_on_terminal() -> contextlib.AbstractContextManager[None]:
    """Print the package's log lines, and other libraries' warnings, within the block."""
    logger.setLevel(logging.INFO)
    return logged_by(logging.StreamHandler(sys.stdout), "%(message)s")


@contextlib.contextmanager
def logged_to(path: Path) -> Iterator[None]:
    """Append all log lines, with their times, to this file within the block."""
    with (
        open_to_append(path) as file,
        logged_by(logging.StreamHandler(file), "%(asctime)s %(message)s"),
    ):
        yield


class PrintableFormatter(logging.Formatter):
    """Formatter that makes every log line printable, on the terminal and in log files."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), keep="\n")


@contextlib.contextmanager
def logged_by(handler: logging.Handler, line: str) -> Iterator[None]:
    handler.setFormatter(PrintableFormatter(line))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
