"""Before the first step: Ctrl-C, too little memory, folders that are taken."""

import os
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from conftest import SMALL, Run, SmallRun, posix

from vit_train.base.machine import memory_bytes, require_memory
from vit_train.commands import train
from vit_train.config.data import ShapesConfig
from vit_train.evaluate import evaluate
from vit_train.run import train as training

# What a start-up goes through, each as the function in which the signal comes.
PHASES = (
    "vit_train.commands.train.to_config",  # reading the settings
    "vit_train.trained.folder.sole_writer",
    "vit_train.run.start.load_dataset",
    "vit_train.run.start.make_task",
    "vit_train.run.folder.TensorBoard",  # opening the reports
    "vit_train.run.train.stop_on_signals",  # the last moment
)
# The signal arrives, and whoever called swallows what Python raises for it. Each phase has a
# process of its own, forked from one that has imported everything.
SWALLOWED = """
import os, signal, sys
from importlib import import_module
from vit_train.commands.train import main
import vit_train.run.train

def interrupted(*what, **more):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass
    except BaseException:
        pass
    return before(*what, **more)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a script's background jobs ignore it
for place in sys.argv.pop(1).split():
    child = os.fork()
    if not child:
        break
    print("status of", place, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
module, _, name = place.rpartition(".")
before = getattr(import_module(module), name)
setattr(import_module(module), name, interrupted)
sys.argv = ["vit-train", *sys.argv[1:], f"hydra.run.dir={place}"]
main()
"""


@pytest.mark.slow
@posix
def test_ctrl_c_is_not_lost_in_any_phase(tmp_path: Path) -> None:
    quiet = ["-W", "ignore::DeprecationWarning"]  # of forking, in Python 3.12
    command = [sys.executable, *quiet, "-c", SWALLOWED, " ".join(PHASES), *SMALL]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if line.startswith("status of ")]
    assert lines == [f"status of {place} 130" for place in PHASES], result.stderr
    assert result.stderr.splitlines() == ["vit-train: interrupted"] * len(PHASES)
    for summary in tmp_path.glob("*/summary.json"):
        assert '"finished"' not in summary.read_text(encoding="utf-8")


# Each console script has a process of its own, and the signal arrives when Hydra is imported.
IMPORTING = """
import os, signal, sys
from importlib import import_module

class Interrupting:
    def find_spec(name, path=None, target=None):
        if name == "hydra":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting)
for script in sys.argv[1:]:
    child = os.fork()
    if not child:
        module, _, name = script.partition(":")
        getattr(import_module(module), name)()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@posix
def test_ctrl_c_during_imports_gives_one_line() -> None:
    """The scripts are those of the project's file; those installed may be of another version."""
    project = Path(__file__).parents[1] / "pyproject.toml"
    scripts = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["scripts"]
    command = [sys.executable, "-c", IMPORTING, *scripts.values()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["130"] * len(scripts), done.stderr
    assert done.stderr.splitlines() == [f"{name}: interrupted" for name in scripts]


@posix
def test_a_closed_pipe_ends_a_command_silently(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", encoding="utf-8") as closed:
        monkeypatch.setattr("sys.stdout", closed)
        outcome = run("vit-inspect", "--help")
    assert outcome.status == 1 and not outcome.err


def test_a_command_restores_the_signal_handler(run: Run) -> None:
    before = signal.getsignal(signal.SIGINT)
    run.succeeds("vit-train", "--cfg", "job")
    run.fails("model.depth", "vit-train", "model.depth=x")
    assert signal.getsignal(signal.SIGINT) is before


def test_data_larger_than_memory_is_refused() -> None:
    require_memory(memory_bytes(), "this", "that")
    with pytest.raises(ValueError, match=r"x would take 1,000,000 GB of memory, .* GB: do y"):
        require_memory(1e15, "x", "do y")


@pytest.mark.parametrize(
    "command, error",
    [
        ("vit-train", MemoryError()),
        ("vit-augment", torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")),
        ("vit-eval ckpt=x", RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")),
        ("vit-train", RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED")),
        ("vit-train", lambda _: torch.empty(2**50, dtype=torch.uint8)),
    ],
)
def test_out_of_memory_in_set_up_is_a_short_message(
    command: str, error: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ShapesConfig, "builds", Mock(side_effect=error))
    monkeypatch.setattr(evaluate, "load_on", Mock(side_effect=error))
    run.fails(f"{command.split()[0]}: out of memory (", *command.split())
    assert not list(Path("outputs").glob("*/*"))


def test_a_resume_locks_the_folder_first(
    run: Run, small_run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that was there a moment ago has ended meanwhile: it is not begun again."""
    folder, hold = small_run("finished"), train.sole_writer
    folder.rename("ended")
    small_run("interrupted")
    shutil.rmtree("run/checkpoints")

    def late(path: Path) -> Any:
        shutil.copytree("ended", path, dirs_exist_ok=True)
        return hold(path)

    monkeypatch.setattr(train, "sole_writer", late)
    monkeypatch.setattr(training, "train_in", None)
    run.says("run is finished", "vit-train", "resume=run")


def test_a_default_name_that_is_taken_gets_a_number(run: Run) -> None:
    """As the second of two runs does that begin in the same second."""
    for path, text in {
        "outputs/12-00-00/config.yaml": "seed: 0\n",
        "conf/experiment/noon.yaml": "# @package _global_\nhydra: {run: {dir: outputs/12-00-00}}\n",
    }.items():
        Path(path).parent.mkdir(parents=True)
        Path(path).write_text(text, encoding="utf-8")
    noon = ["--config-dir", "conf", "experiment=noon", *SMALL, "train.max_minutes=1e-9"]
    run.succeeds("vit-train", *noon)
    assert Path("outputs/12-00-00-2/summary.json").exists()
    assert {path.name for path in Path("outputs/12-00-00").iterdir()} == {"config.yaml", ".lock"}
