"""Orderly end of a run: on a signal, or when its time is up."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType

from vit_train.engine.trainer import Callback, Trainer

# SIGHUP: the terminal has been closed. SIGUSR2: Slurm's launcher says that the time is nearly up.
# Windows has neither.
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR2")


class Deadline(Callback):
    """Requests a stop once time.monotonic() has reached `end`."""

    def __init__(self, end: float) -> None:
        self.end = end

    def on_step(self, trainer: Trainer) -> None:
        if time.monotonic() >= self.end:
            trainer.stop_requested = True


class Interruption:
    """The signal that requested the stop, if any."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def reason(self) -> str:
        """Return why the run was stopped, in words."""
        if self.signal is None:
            return "its time is up (train.max_minutes counts anew from each start; null lifts it)"
        return f"on {signal.Signals(self.signal).name}"

    @property
    def exit_status(self) -> int:
        """Return the exit status as in shells, 128 and the signal's number; 0 for no signal."""
        return 0 if self.signal is None else 128 + self.signal


@contextlib.contextmanager
def stop_on_signals(trainer: Trainer) -> Iterator[Interruption]:
    """Stop the run after the current step on any of SIGNALS, except those that are ignored.

    nohup has SIGHUP ignored, for instance. A second signal ends the process at once, unless it is
    SIGHUP, of which a terminal that is closed may send several. In another thread than the main
    one, which alone may handle signals, this does nothing.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    known = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    numbers = [number for number in known if signal.getsignal(number) is not signal.SIG_IGN]

    def request(number: int, frame: FrameType | None) -> None:
        trainer.stop_requested = True
        interruption.signal = number
        for handled in numbers:
            signal.signal(handled, end_at_once)

    def end_at_once(number: int, frame: FrameType | None) -> None:
        if signal.Signals(number).name == "SIGHUP":
            return
        # `request` cannot install the default handler itself: if a signal is already pending then,
        # Python reports an error instead of ending the process.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    before = {number: signal.signal(number, request) for number in numbers}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
