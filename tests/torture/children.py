"""Commands in children of this process, which has everything imported."""

import gc
import importlib
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkProcess as Process
from pathlib import Path
from types import MappingProxyType

from conftest import MAINS

# What the commands import on their way, and what torch, matplotlib and Hydra bring then.
for module in (
    *("vit_train.run.train", "vit_train.run.preview", "vit_train.evaluate.evaluate"),
    *("vit_train.evaluate.compare", "vit_train.evaluate.results", "vit_train.data.published"),
    *("vit_train.data.folder", "torch._dynamo", "torch.distributed", "torchvision.datasets"),
    *("matplotlib.backends.backend_agg", "PIL.PngImagePlugin", "filelock", "tqdm"),
    *("hydra_plugins.hydra_optuna_sweeper.optuna_sweeper", "optuna", "antlr4.LL1Analyzer"),
    "hydra_plugins.hydra_submitit_launcher.submitit_launcher",
):
    importlib.import_module(module)
gc.freeze()  # children's garbage collections leave all of it alone: the pages are not copied

FORK = multiprocessing.get_context("fork")
# A command that computes for longer does not end in reasonable time; one that takes longer hangs.
COMPUTES, TAKES = 20, 180
MORE = 3 * 2**30  # bytes of memory that it may take
SHOWN = 100_000


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
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0])
        most = pages * resource.getpagesize() + MORE
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
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
    stopped = "time" if child.exitcode in (-signal.SIGXCPU, -signal.SIGKILL) else ""
    if child.exitcode is None:
        stopped = "hang"
        os.killpg(child.pid, signal.SIGKILL)
        child.join()
    out, err = (shown(output.with_suffix(f".{name}")) for name in ("out", "err"))
    return Outcome(child.name, child.exitcode, out, err, stopped)


def shown(path: Path) -> str:
    """The beginning of what a command printed, and its end."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    return text if len(text) < 2 * SHOWN else text[:SHOWN] + text[-SHOWN:]
