"""What can stop a run before its end: a signal, or the time limit train.max_minutes."""

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from vit_train.loop.trainer import Callback, Trainer

# SIGHUP: the terminal has been closed. SIGUSR2: Slurm warns that the job's time is nearly up.
# Windows has neither.
NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR2")
SIGNALS = [getattr(signal, name) for name in NAMES if hasattr(signal, name)]
TIME_IS_UP = "because train.max_minutes has passed (counted from each start; null: no limit)"


class Deadline(Callback):
    """Stops the run after the given number of minutes; None means no limit."""

    def __init__(self, minutes: float | None) -> None:
        self.end = math.inf if minutes is None else time.monotonic() + 60 * minutes

    def on_step(self, trainer: Trainer) -> None:
        if time.monotonic() >= self.end:
            trainer.stop(TIME_IS_UP)


@contextmanager
def stop_on_signals(trainer: Trainer) -> Iterator[list[int]]:
    """Stop the run after the current step if any of SIGNALS is received.

    Yield a list that will contain the number of the received signal. A second signal is handled as
    before the run, unless it is SIGHUP, which a closing terminal may send several times. Signals
    that the process ignores, such as SIGHUP under nohup, stay ignored. Outside the main thread, do
    nothing, because Python lets only the main thread handle signals.
    """
    received: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    numbers = [each for each in SIGNALS if is_main and signal.getsignal(each) != signal.SIG_IGN]

    def request(number: int, frame: FrameType | None) -> None:
        trainer.stop(f"on {signal.Signals(number).name}")
        received.append(number)
        for handled in numbers:
            signal.signal(handled, handle_as_before)

    def handle_as_before(number: int, frame: FrameType | None) -> None:
        if signal.Signals(number).name == "SIGHUP":
            return
        # `request` cannot itself restore the earlier handler: with another signal pending, Python
        # would report an error instead of ending the process.
        signal.signal(number, before[number])
        signal.raise_signal(number)

    before = {number: signal.signal(number, request) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
