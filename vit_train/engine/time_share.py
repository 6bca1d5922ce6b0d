"""Recurring work that may take only a small share of a run's time."""

import contextlib
import time
from collections.abc import Iterator


class TimeShare:
    """Says when a work is due again, so that it takes at most `share` of the time.

    It is due at first, and then as long after its last time as that allows: with 0.01, a hundred
    times as long as it took.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.due_at = float("-inf")

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self.due_at

    @contextlib.contextmanager
    def spent(self) -> Iterator[None]:
        """Take the time of the work within the block."""
        began = time.monotonic()
        yield
        ended = time.monotonic()
        self.due_at = ended + (ended - began) / self.share
