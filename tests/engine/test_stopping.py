import signal
import subprocess
import sys

import pytest

TWICE = """
import os, signal
from vit_train.engine.stopping import stop_on_signals

class Trainer:
    stop_requested = False

with stop_on_signals(Trainer) as interruption:
    os.kill(os.getpid(), signal.{name})
    assert Trainer.stop_requested
    print(interruption.exit_status, flush=True)
    os.kill(os.getpid(), signal.{name})
    print("still there")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_ends_at_once(number: signal.Signals) -> None:
    code = TWICE.format(name=number.name)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == f"{128 + number}\n" and done.returncode == -number, done.stderr
