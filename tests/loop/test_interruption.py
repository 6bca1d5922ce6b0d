import multiprocessing
import signal
from types import SimpleNamespace

import pytest
from conftest import posix

from vit_train.run.train import SIGNALS, stop_on_signals

# Each thing that happens has a process of its own, forked from one that has imported torch.
PROGRAM = """
import os, signal, sys
from vit_train.run.train import stop_on_signals

class Trainer:
    stopped = ""

    @classmethod
    def stop(cls, reason):
        cls.stopped = reason

def twice(number):
    with stop_on_signals(Trainer) as interruption:
        os.kill(os.getpid(), number)
        assert Trainer.stopped
        print(*interruption, flush=True)
        os.kill(os.getpid(), number)
        print("still there")

def hung_up():
    with stop_on_signals(Trainer) as interruption:
        for _ in range(3):  # from the shell, and from the system when the shell has ended
            os.kill(os.getpid(), signal.SIGHUP)
        assert Trainer.stopped
        print(*interruption, flush=True)

def ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
    with stop_on_signals(Trainer) as interruption:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not Trainer.stopped
        print(*interruption, flush=True)

def together():
    with stop_on_signals(Trainer):
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])
        for _ in range(1000):
            pass
        print("still there")

signals = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
asking = [(twice, number) for number in signals]
for happens, *what in (*asking, (hung_up,), (ignored,), (together,)):
    child = os.fork()
    if not child:
        for number in (*signals, signal.SIGHUP):  # whatever started the tests ignores
            signal.signal(number, signal.SIG_DFL)
        happens(*what)
        os._exit(0)
    print("ended by", -os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@posix
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # of a process with threads
def test_the_first_signal_requests_a_stop_and_the_second_forces_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Whichever they are, and if both arrive at the same moment, too; but SIGHUP only asks."""
    child = multiprocessing.get_context("fork").Process(target=exec, args=(PROGRAM, {}))
    child.start()
    child.join()
    out, err = capfd.readouterr()
    *asked, last = out.splitlines()
    ends = [f"ended by {int(each)}" for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)]
    closed = ["1", "ended by 0", "", "ended by 0"]
    assert (
        asked == ["2", ends[0], "15", ends[1], str(int(signal.SIGUSR2)), ends[2], *closed]
        and err == ""
    )
    assert last in ends[:2]


def test_signal_handlers_are_restored() -> None:
    numbers = [each for each in SIGNALS if signal.getsignal(each) != signal.SIG_IGN]
    before = [signal.getsignal(number) for number in numbers]
    with stop_on_signals(SimpleNamespace()) as stop:
        assert all(signal.getsignal(number) not in before for number in numbers)
    assert [signal.getsignal(number) for number in numbers] == before
    assert stop == []
