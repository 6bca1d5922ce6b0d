"""Work and commands in children of this process, which has everything imported."""

import gc
import importlib
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess as Process
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from conftest import MAINS

# What the commands import on their way, and what torch, matplotlib and Hydra bring then.
for module in (
    *("vit_train.training.train", "vit_train.training.preview", "vit_train.evaluation.evaluate"),
    *("vit_train.evaluation.comparison", "vit_train.results.table", "vit_train.data.published"),
    *("vit_train.data.folder", "torch._dynamo", "torch.distributed", "torchvision.datasets"),
    *("matplotlib.backends.backend_agg", "PIL.PngImagePlugin", "filelock", "tqdm"),
    *("hydra_plugins.hydra_optuna_sweeper.optuna_sweeper", "optuna", "antlr4.LL1Analyzer"),
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher",
):
    importlib.import_module(module)
gc.freeze()  # children's garbage collections leave all of it alone: the pages are not copied

Task = TypeVar("Task")
FORK = multiprocessing.get_context("fork")
GIGABYTE = 2**30
# A command that computes for longer does not end in reasonable time; one that takes longer hangs.
COMPUTES, TAKES = 20, 180
SHOWN = 100_000


def in_children(
    tasks: Iterator[Task], work: Callable[[Task], None], jobs: int
) -> Iterator[tuple[Task, int, float]]:
    """Each task with its exit status and its seconds, as they end."""
    running = {}
    while True:
        while len(running) < jobs and (task := next(tasks, None)) is not None:
            child = FORK.Process(target=work, args=(task,))
            child.start()
            running[child] = task, time.monotonic()
        if not running:
            return
        wait([child.sentinel for child in running])
        for child in [child for child in running if child.exitcode is not None]:
            task, began = running.pop(child)
            yield task, child.exitcode, time.monotonic() - began


@dataclass(frozen=True)
class Outcome:
    """How a command ended; `stopped` says what for if it went beyond its bounds."""

    command: str
    status: int
    out: str
    err: str
    stopped: str


def start(
    command: str,
    arguments: Sequence[str],
    output: Path,
    environment: Mapping[str, str] = MappingProxyType({}),
    before: Callable[[], None] = lambda: None,
) -> Process:
    """A command. `before` is called in the child first; output goes to files named `output`.*"""

    def work() -> None:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (COMPUTES, COMPUTES))
        for name, number in (("out", 1), ("err", 2)):
            # Appended to, as a run that goes on is another child.
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            os.dup2(os.open(output.with_suffix(f".{name}"), flags, 0o600), number)
        os.environ |= environment
        sys.argv = [command, *arguments]
        before()
        MAINS[command]()

    child = FORK.Process(target=work, name=command)
    child.start()
    return child


def ended(child: Process, output: Path) -> Outcome:
    """How a command ends, or is ended when it hangs."""
    child.join(TAKES)
    stopped = "" if child.exitcode is not None else "hang"
    if stopped:
        os.killpg(child.pid, signal.SIGKILL)
        child.join()
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    own, largest = (1024 * resource.getrusage(who).ru_maxrss for who in kinds)
    if child.exitcode in (-signal.SIGXCPU, -signal.SIGKILL):
        stopped = stopped or "time"
    elif largest > own + GIGABYTE:
        stopped = "memory"
    out, err = (shown(output.with_suffix(f".{name}")) for name in ("out", "err"))
    return Outcome(child.name, child.exitcode, out, err, stopped)


def shown(path: Path) -> str:
    """The beginning of what a command printed, and its end."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    return text if len(text) < 2 * SHOWN else text[:SHOWN] + text[-SHOWN:]
