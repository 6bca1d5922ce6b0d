"""Logging to the terminal and to files."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

from vit_train.base.text import printable

# The package's messages to its user.
logger = logging.getLogger("vit_train")


def shown_on_terminal() -> contextlib.AbstractContextManager[None]:
    """Within the block, print the package's log lines and other libraries' warnings to stdout."""
    return logged_by(logging.StreamHandler(sys.stdout))


@contextlib.contextmanager
def logged_to(path: Path) -> Iterator[None]:
    """Within the block, append every log line, with a timestamp, to the file `path`.

    Also append the message of an error that ends the block. Lines that cannot be written are lost.
    """
    handler = logging.FileHandler(path, encoding="utf-8")
    try:
        with logged_by(handler, "%(asctime)s %(message)s"):
            yield
    except BaseException as error:
        handler.handle(logging.makeLogRecord({"msg": f"ended by {type(error).__name__}: {error}"}))
        raise
    finally:
        with contextlib.suppress(OSError):  # which would hide the error that ends the block
            handler.close()


class PrintableFormatter(logging.Formatter):
    """Log formatter that escapes control characters other than newlines."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), keep="\n")


@contextlib.contextmanager
def logged_by(handler: logging.Handler, line: str = "%(message)s") -> Iterator[None]:
    """Within the block, let `handler` write every log line in the format `line`."""
    logger.setLevel(logging.INFO)
    handler.setFormatter(PrintableFormatter(line))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
