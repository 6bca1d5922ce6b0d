"""Protection of training against a disk that is full or unavailable for a while."""

import logging
import time
from typing import Any

from vit_train.engine.callbacks import Callback

logger = logging.getLogger(__name__)
EVENTS = ("on_log", "on_step", "on_epoch", "on_stop", "on_nonfinite")
# After a failure nothing is written for this many seconds.
PAUSE = 30.0


class ContinueOnDiskError(Callback):
    """Forwards every event to callbacks, in order; if the disk fails, training continues.

    It logs the first failure, and later that writing works again.
    """

    def __init__(self, callbacks: list[Callback]) -> None:
        self.callbacks = callbacks
        self.silent_until = 0.0
        self.failing = False
        for event in EVENTS:
            setattr(self, event, self._patiently(event))

    def _patiently(self, event: str) -> Any:
        def forward(*arguments: Any) -> None:
            if time.monotonic() < self.silent_until:
                return
            try:
                for callback in self.callbacks:
                    getattr(callback, event)(*arguments)
                if self.failing and event == "on_epoch":
                    logger.warning("the disk is writable again")
                    self.failing = False
            except OSError as error:
                self.silent_until = time.monotonic() + PAUSE
                if not self.failing:
                    logger.warning(f"cannot write, but training continues: {error}")
                self.failing = True

        return forward
