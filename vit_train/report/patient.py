"""Observers that write, where the disk may be full or gone for a while."""

import logging
from typing import Any

from vit_train.engine.observer import Observer

logger = logging.getLogger(__name__)


class Patient(Observer):
    """Hands everything on; what cannot be written is named once, and training goes on."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.failing = False
        for event in ("on_log", "on_step", "on_epoch", "on_stop", "on_nonfinite"):
            setattr(self, event, self._patiently(getattr(observer, event)))

    def _patiently(self, tell: Any) -> Any:
        def told(*what: Any) -> None:
            try:
                tell(*what)
                self.failing = False
            except OSError as error:
                if not self.failing:
                    logger.warning(f"cannot write, going on without: {error}")
                self.failing = True

        return told
