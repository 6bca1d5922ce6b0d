"""Work and commands in children of this process, which has everything imported."""

import atexit
import contextlib
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from torture.warm import MAINS

Task = TypeVar("Task")
TICKS = os.sysconf("SC_CLK_TCK")
GIGABYTE = 2**30
# A child that computes for longer, or sleeps for longer while nothing below it computes either,
# hangs. Neither depends on what else the machine does.
SECONDS = 20
ASLEEP = 15
SHOWN = 100_000


def fork(work: Callable[[], None]) -> int:
    """Do the work in a child as if it were the whole program; returns the child's number."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            status = ended(work)
        finally:
            os._exit(status)
    return pid


def in_children(
    tasks: Iterator[Task], work: Callable[[Task], None], jobs: int
) -> Iterator[tuple[Task, int, float]]:
    """Each task with its exit status and its seconds, as they end."""
    running: dict[int, tuple[Task, float]] = {}
    while True:
        while len(running) < jobs and (task := next(tasks, None)) is not None:
            running[fork(lambda task=task: work(task))] = task, time.monotonic()  # type: ignore[misc]
        if not running:
            return
        for pid in list(running):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                task, began = running.pop(pid)
                yield task, os.waitstatus_to_exitcode(status), time.monotonic() - began
        time.sleep(0.01)


def ended(work: Callable[[], None]) -> int:
    """The exit status that the interpreter would give."""
    status: object = 1
    atexit._clear()  # what this process would do at its end is not the child's business
    try:
        work()
        status = 0
    except SystemExit as end:
        status = end.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return int(status)  # type: ignore[call-overload]


@dataclass(frozen=True)
class Outcome:
    """How a command ended; `stopped` says what for if the watch did it."""

    command: str
    status: int
    out: str
    err: str
    stopped: str


@dataclass
class Child:
    """One command. `before` is called in the child first; output goes to files named `output`.*"""

    command: str
    arguments: Sequence[str]
    output: Path
    environment: dict[str, str] = field(default_factory=dict)
    before: Callable[[], None] = lambda: None
    memory: int = GIGABYTE
    seconds: float = SECONDS

    def __post_init__(self) -> None:
        self.stopped = ""
        self.pid = fork(self._work)
        self.least = resident(os.getpid())
        self.ticks, self.moved = 0, time.monotonic()
        self.outcome: Outcome | None = None

    def _work(self) -> None:
        os.setpgid(0, 0)
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
        for name, number in (("out", 1), ("err", 2)):
            # Appended to, as a run that goes on is another child.
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            os.dup2(os.open(self.output.with_suffix(f".{name}"), flags, 0o600), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ |= self.environment
        sys.argv = [self.command, *self.arguments]
        self.before()
        MAINS[self.command]()

    def poll(self) -> Outcome | None:
        """None as long as it goes on within its bounds."""
        if self.outcome is None:
            done, status, usage = os.wait4(self.pid, os.WNOHANG)
            if done:
                self._end(status, usage.ru_maxrss * 1024)
            elif not self.stopped:
                self._watch()
        return self.outcome

    def wait(self) -> Outcome:
        while (outcome := self.poll()) is None:
            time.sleep(0.01)
        return outcome

    def kill(self) -> None:
        """With all that it has started."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:  # it has no group yet
            os.kill(self.pid, signal.SIGKILL)

    def _end(self, status: int, peak: int) -> None:
        if peak > self.least + self.memory and not self.stopped:
            self.stopped = "memory"
        texts = (shown(self.output.with_suffix(f".{name}")) for name in ("out", "err"))
        code = os.waitstatus_to_exitcode(status)
        self.outcome = Outcome(self.command, code, *texts, self.stopped)

    def _watch(self) -> None:
        now, (ticks, asleep) = time.monotonic(), activity(self.pid)
        if not asleep or self._moved_below(ticks):
            self.moved = now
        if resident(self.pid) > self.least + self.memory:
            self.stopped = "memory"
        elif ticks > self.seconds * TICKS:
            self.stopped = "time"
        elif now > self.moved + ASLEEP:
            self.stopped = "hang"
        if self.stopped:
            self.kill()

    def _moved_below(self, ticks: int) -> bool:
        """Whether it, or what it has started, has computed since this was asked last."""
        before, self.ticks = self.ticks, ticks + sum(activity(each)[0] for each in below(self.pid))
        return self.ticks != before


def below(pid: int) -> list[int]:
    """What a process has started, and what that has."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it ends just now
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            found += [int(each) for each in path.read_text(encoding="utf-8").split()]
    return found + [deeper for each in found for deeper in below(each)]


def shown(path: Path) -> str:
    """Its beginning and its end."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        data = file.read(SHOWN)
        file.seek(max(len(data), path.stat().st_size - SHOWN))
        return (data + file.read(SHOWN)).decode(errors="replace")


def resident(pid: int) -> int:
    """Bytes in memory now; 0 of a process that has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )
    except (OSError, IndexError):
        return 0


def activity(pid: int) -> tuple[int, bool]:
    """The ticks it has computed for, and whether it waits for something now."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0, False
    return int(fields[11]) + int(fields[12]), fields[0] in "SD"
