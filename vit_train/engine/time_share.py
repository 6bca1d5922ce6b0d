"""Recurring work that may take only a small share of a run's time."""

import contextlib
import time
from collections.abc import Iterator


class TimeShare:
    """Says when recurring work is due, so that it takes at most `share` of the time.

    It is due at once; after that it waits 1/share times as long as it last took: with 0.01, a
    hundred times as long.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.due_at = float("-inf")

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self.due_at

    @contextlib.contextmanager
    def spent(self) -> Iterator[None]:
        """Time the work within the block."""
        began = time.monotonic()
        yield
        ended = time.monotonic()
        self.due_at = ended + (ended - began) / self.share
