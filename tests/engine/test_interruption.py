import signal
import subprocess
import sys

import pytest
from conftest import posix

from vit_train.engine.interruption import Deadline, stop_on_signals

TWICE = """
import os, signal
from vit_train.engine.interruption import stop_on_signals

class Trainer:
    stop_requested = False

with stop_on_signals(Trainer) as interruption:
    os.kill(os.getpid(), signal.{name})
    assert Trainer.stop_requested
    print(interruption.exit_status, flush=True)
    os.kill(os.getpid(), signal.{name})
    print("still there")
"""


TOGETHER = """
import os, signal
from vit_train.engine.interruption import stop_on_signals

class Trainer:
    stop_requested = False

with stop_on_signals(Trainer):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])
    for _ in range(1000):
        pass
    print("still there")
"""


@posix
def test_two_signals_at_the_same_moment_are_a_first_and_a_second() -> None:
    done = subprocess.run([sys.executable, "-c", TOGETHER], capture_output=True, text=True)
    assert done.returncode in (-signal.SIGINT, -signal.SIGTERM)
    assert done.stdout == done.stderr == ""


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_ends_at_once(number: signal.Signals) -> None:
    code = TWICE.format(name=number.name)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == f"{128 + number}\n" and done.returncode == -number, done.stderr


def test_time_is_up_after_so_many_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Trainer:
        stop_requested = False

    now, trainer = 1000.0, Trainer()
    monkeypatch.setattr("time.monotonic", lambda: now)
    deadline = Deadline(1.5)
    for now, up in ((1001.5, False), (1089, False), (1090, True)):
        deadline.on_step(trainer)
        assert trainer.stop_requested == up, now


def test_afterwards_signals_do_what_they_did_before() -> None:
    class Trainer:
        stop_requested = False

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    with stop_on_signals(Trainer) as interruption:
        assert all(signal.getsignal(number) not in before for number in numbers)
    assert [signal.getsignal(number) for number in numbers] == before
    assert interruption.exit_status == 0 and "time is up" in interruption.reason
