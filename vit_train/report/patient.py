"""Callbacks that write, where the disk may be full or gone for a while."""

import logging
import time
from typing import Any

from vit_train.engine.callbacks import Callback

logger = logging.getLogger(__name__)
EVENTS = ("on_log", "on_step", "on_epoch", "on_stop", "on_nonfinite")
# After a failure nothing is written for so many seconds.
PAUSE = 30.0


class Patient(Callback):
    """Hands everything on to callbacks in turn; when the disk fails, training goes on without.

    The first failure is told, and when it is over.
    """

    def __init__(self, callbacks: list[Callback]) -> None:
        self.callbacks = callbacks
        self.silent_until = 0.0
        self.failing = False
        for event in EVENTS:
            setattr(self, event, self._patiently(event))

    def _patiently(self, event: str) -> Any:
        def told(*what: Any) -> None:
            if time.monotonic() < self.silent_until:
                return
            try:
                for callback in self.callbacks:
                    getattr(callback, event)(*what)
                if self.failing and event == "on_epoch":
                    logger.warning("the disk can be written again")
                    self.failing = False
            except OSError as error:
                self.silent_until = time.monotonic() + PAUSE
                if not self.failing:
                    logger.warning(f"cannot write, training goes on without: {error}")
                self.failing = True

        return told
