"""Protection of training against a disk that is full or unavailable for a while."""

import logging
import time
from typing import Any

from vit_train.engine.callbacks import Callback
from vit_train.engine.trainer import Trainer

logger = logging.getLogger(__name__)
# Seconds for which nothing is tried after steps once that has failed.
PAUSE = 30.0
EVENTS = [name for name in vars(Callback) if name.startswith("on_")]


class ContinueOnDiskError(Callback):
    """Forwards every event to callbacks, in order; if the disk fails, training continues.

    Each callback is tried, whichever of the others fails. It logs the first failure, and later that
    writing works again. A failure at the end of training, after which nothing is tried again, is
    raised.
    """

    def __init__(self, callbacks: list[Callback]) -> None:
        self.callbacks = callbacks
        self.silent_until = 0.0
        self.failing = False
        for event in EVENTS:
            setattr(self, event, self._patiently(event))

    def _patiently(self, event: str) -> Any:
        def forward(*arguments: Any) -> None:
            if event == "on_step" and time.monotonic() < self.silent_until:
                return
            failures = []
            for callback in self.callbacks:
                try:
                    getattr(callback, event)(*arguments)
                except OSError as error:
                    failures.append(error)
            if failures and is_last(event, *arguments):
                raise failures[0]
            if failures:
                self.silent_until = time.monotonic() + PAUSE
                if not self.failing:
                    logger.warning(
                        f"cannot write, but training continues: {failures[0]}; until that works, "
                        "no checkpoint is saved"
                    )
                self.failing = True
            elif self.failing and event == "on_epoch":
                logger.warning("the disk is writable again")
                self.failing = False

        return forward


def is_last(event: str, trainer: Trainer, *_: object) -> bool:
    """Return whether no event follows this one."""
    return event == "on_stop" or (event == "on_epoch" and trainer.finished)
