"""Training in several processes, as torchrun starts them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import SMALL, Run, SmallRun, posix

import vit_train

pytestmark = posix  # torchrun

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
COMMAND = [*TORCHRUN, "-m", "vit_train.commands.train", *SMALL]
# Two processes here and its own log apart.
QUIET = os.environ | {"OMP_NUM_THREADS": "1"}


def weights(folder: str) -> torch.Tensor:
    model, _ = vit_train.load(folder)
    return torch.cat([parameter.flatten() for parameter in model.parameters()])


def test_two_processes_leave_one_run_that_one_process_goes_on_with(small_run: SmallRun) -> None:
    command = [*COMMAND, "hydra.run.dir=two", "train.max_minutes=1e-9"]
    done = subprocess.run(command, capture_output=True, text=True, env=QUIET, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "fp32 on cpu in 2 processes" in done.stdout and done.stdout.count("stopped after") == 1
    assert json.loads(Path("two/summary.json").read_text(encoding="utf-8"))["steps"] == 1
    done = subprocess.run(
        [*TORCHRUN, "-m", "vit_train.commands.train", "resume=two", "train.max_minutes=null"],
        capture_output=True, text=True, env=QUIET, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not Path("outputs").exists(), "only the run's folder is written"
    small_run("finished", "one")
    torch.testing.assert_close(weights("two"), weights("one"), rtol=0, atol=1e-4)
    two, one = (
        json.loads(Path(each, "summary.json").read_text(encoding="utf-8"))
        for each in ("two", "one")
    )
    assert two["processes"] == 2 and two["images_seen"] == one["images_seen"]
    assert two["test"]["final"]["per_class_count"] == one["test"]["final"]["per_class_count"]
    assert two["test"]["final"]["acc"] == pytest.approx(one["test"]["final"]["acc"], abs=0.04)


def children(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(each) for each in path.read_text(encoding="utf-8").split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_a_process_that_dies_ends_the_others_within_seconds(tmp_path: Path) -> None:
    command = [*COMMAND, "train.epochs=100000", "hydra.run.dir=run"]
    silent = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    process = subprocess.Popen(command, cwd=tmp_path, env=QUIET, **silent)
    try:
        deadline = time.monotonic() + 180
        while not (tmp_path / "run/checkpoints/last.pt").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        workers = children(process.pid)
        assert len(workers) == 2
        os.kill(workers[1], signal.SIGKILL)
        died = time.monotonic()
        _, errors = process.communicate(timeout=60)
        assert process.returncode != 0 and time.monotonic() - died < 45
        assert "SIGKILL" in errors or "Signal 9" in errors
        assert "by peer" not in errors  # the other one says it in our words, if it comes to that
    finally:
        process.kill()
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def test_an_error_is_told_by_the_process_that_has_it(run: Run) -> None:
    command = [*COMMAND, "hydra.run.dir=run", "model=cnn"]
    command = [each for each in command if not each.startswith("model.")]
    done = subprocess.run(command, capture_output=True, text=True, env=QUIET, timeout=240)
    assert done.returncode != 0 and "BatchNorm" in done.stderr
