"""Work in children of this process, a few at a time."""

import os
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from torture.children import fork

Task = TypeVar("Task")


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
