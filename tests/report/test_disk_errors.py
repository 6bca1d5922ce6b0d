import errno
from types import SimpleNamespace

import pytest

from vit_train.engine.trainer import Callback
from vit_train.training.checkpoints import PAUSE, ContinueOnDiskError

TRAINING, FINISHED = SimpleNamespace(finished=False), SimpleNamespace(finished=True)


class Disk(Callback):
    """Hears of steps and epochs as long as it is not full."""

    def __init__(self) -> None:
        self.full = False
        self.heard: list[tuple[object, ...]] = []

    def note(self, *what: object) -> None:
        self.heard.append(what)
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")

    def on_step(self, trainer: object) -> None:
        self.note("step", trainer)

    def on_epoch(self, trainer: object, log: object, val: object) -> None:
        self.note("epoch", trainer, log, val)

    def on_stop(self, trainer: object) -> None:
        self.note("stop", trainer)


def test_after_a_failure_there_is_a_pause_and_then_another_try(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    first, second = Disk(), Disk()
    patient = ContinueOnDiskError([first, second])
    patient.on_step(1)
    patient.on_epoch(TRAINING, 2, 3)
    assert first.heard == second.heard == [("step", 1), ("epoch", TRAINING, 2, 3)]
    first.full = True
    patient.on_step(2)
    assert first.heard == second.heard and len(first.heard) == 3
    now = 1000 + PAUSE - 1
    patient.on_step(3)
    assert len(first.heard) == len(second.heard) == 3
    patient.on_epoch(TRAINING, 4, 5)  # is never left out
    assert first.heard == second.heard and len(first.heard) == 4
    now += PAUSE
    patient.on_step(4)  # still full
    assert len(first.heard) == 5
    first.full, now = False, now + PAUSE
    patient.on_epoch(TRAINING, 6, 7)
    assert first.heard[-1] == second.heard[-1] == ("epoch", TRAINING, 6, 7)
    patient.on_epoch(TRAINING, 7, 8)  # which is nothing new
    first.full = True
    patient.on_step(7)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3 and "training continues" in messages[0]
    assert messages[1] == "the disk is writable again" and messages[2] == messages[0]


@pytest.mark.parametrize("event, what", [("on_epoch", (FINISHED, 2, 3)), ("on_stop", (TRAINING,))])
def test_what_is_not_tried_again_is_an_error(event: str, what: tuple[object, ...]) -> None:
    first, second = Disk(), Disk()
    first.full = True
    with pytest.raises(OSError, match="No space left"):
        getattr(ContinueOnDiskError([first, second]), event)(*what)
    assert first.heard == second.heard  # the others are told all the same
