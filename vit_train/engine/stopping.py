"""Ending a run in good order: on a signal, or when its time is up."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from types import FrameType

from vit_train.engine.callbacks import Callback
from vit_train.engine.trainer import Trainer


class Deadline(Callback):
    """Asks for a stop once so many minutes have passed."""

    def __init__(self, minutes: float) -> None:
        self.end = time.monotonic() + 60 * minutes

    def on_step(self, trainer: Trainer) -> None:
        if time.monotonic() >= self.end:
            trainer.stop_requested = True


class Interruption:
    """Which signal asked for the stop, if any."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def reason(self) -> str:
        """Why a run was stopped, in words."""
        if self.signal is None:
            return "its time is up (train.max_minutes)"
        return f"on {signal.Signals(self.signal).name}"

    @property
    def exit_status(self) -> int:
        """As shells count: 130 for SIGINT, 143 for SIGTERM; 0 where no signal came."""
        return 0 if self.signal is None else 128 + self.signal


@contextlib.contextmanager
def stop_on_signals(trainer: Trainer) -> Iterator[Interruption]:
    """Ctrl-C or SIGTERM (Slurm, `timeout`) ends the run after the step; a second one at once."""
    interruption = Interruption()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def request(number: int, frame: FrameType | None) -> None:
        trainer.stop_requested = True
        interruption.signal = number
        for each in numbers:
            signal.signal(each, end_at_once)

    def end_at_once(number: int, frame: FrameType | None) -> None:
        # Not the default handler in the first place: a signal that is waiting would meet it as
        # an error.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before = {number: signal.signal(number, request) for number in numbers}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
