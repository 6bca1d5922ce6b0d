"""The log in a run's folder: the terminal's messages, with the time of each."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from vit_train.files.writing import open_to_append
from vit_train.text import PrintableFormatter


@contextlib.contextmanager
def logged_to(path: Path, enabled: bool = True) -> Iterator[None]:
    """Add everything that is logged within the block to this file."""
    if not enabled:
        yield
        return
    with open_to_append(path) as file:
        handler = logging.StreamHandler(file)
        handler.setFormatter(PrintableFormatter("%(asctime)s %(message)s"))
        root = logging.getLogger()
        root.addHandler(handler)
        try:
            yield
        finally:
            root.removeHandler(handler)
