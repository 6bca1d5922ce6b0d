"""A folder on a file system that has no locks, or refuses them."""

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SMALL, Run, SmallRun, posix

from vit_train.base import locking
from vit_train.base.locking import Taken, exclusive

pytestmark = posix
OWNER = Path("run/.lock-owner")
RESUME = ["resume=run", "train.max_minutes=null"]
DIES = """
import os, sys
from filelock import SoftFileLock
lock = SoftFileLock(sys.argv[1]).acquire()
os._exit(0)
"""


def no_lock(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(locking.fcntl, "flock", refuse)


@pytest.mark.parametrize("number", locking.NO_LOCKS)
def test_a_run_trains_and_says_what_the_lock_is(
    run: Run, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    no_lock(monkeypatch, number)
    outcome = run.succeeds("vit-train", *SMALL, "train.epochs=1", "hydra.run.dir=run")
    said = f"run/.lock: {os.strerror(number)}: .lock-owner is the lock instead"
    assert said in outcome.out.replace("\n        ", " ") and not OWNER.exists()


def test_a_denied_permission_is_called_that(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    no_lock(monkeypatch, errno.EACCES)
    outcome = run("vit-train", *SMALL, "hydra.run.dir=run")
    assert outcome.status == 1 and outcome.err.endswith("run/.lock: Permission denied\n")


def test_another_process_is_named_with_its_host_and_what_to_do_if_it_is_dead(
    run: Run, small_run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_run("interrupted")
    OWNER.write_text("123\nelsewhere\n", encoding="utf-8")
    for locks in (True, False):  # the other one had none, whether or not this one has
        if not locks:
            no_lock(monkeypatch, errno.ENOLCK)
        outcome = run("vit-train", *RESUME)
        assert outcome.status == 1 and outcome.err == (
            "vit-train: process 123 on elsewhere is training in run: end it first; if it no longer "
            "runs, remove run/.lock-owner\n"
        )
    OWNER.unlink()
    assert run("vit-train", *RESUME).status == 0 and not OWNER.exists()


def test_what_a_killed_process_of_this_host_left_is_taken_over(
    run: Run, small_run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_run("interrupted")
    subprocess.run([sys.executable, "-c", DIES, OWNER], check=True)
    assert OWNER.read_text(encoding="utf-8").splitlines()[1] == socket.gethostname()
    no_lock(monkeypatch, errno.ENOLCK)
    assert run("vit-train", *RESUME).status == 0 and not OWNER.exists()


def test_it_has_one_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_lock(monkeypatch, errno.EOPNOTSUPP)
    with exclusive(tmp_path / ".lock"):
        with pytest.raises(Taken) as taken, exclusive(tmp_path / ".lock"):
            pass
        assert taken.value.holder == f"process {os.getpid()} on {socket.gethostname()}"
