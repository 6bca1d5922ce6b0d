"""A contender in a process of its own, which waits to be told what to time."""

import multiprocessing
import resource
import sys
import time
import traceback
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, NamedTuple

from vit_train.bench.contender import Bench, Contender
from vit_train.bench.machine import LoadMeter


class Answer(NamedTuple):
    """A contender's result, and how many cores other programs used meanwhile, if known."""

    value: float
    others: float | None


def serve(connection: Connection, contender: Contender) -> None:
    """Answer (method, arguments) in the contender's process until the connection closes."""
    try:
        bench = Bench(contender)
        connection.send((bench.parameters, None))
        while True:
            method, arguments = connection.recv()
            started = time.process_time()
            value = getattr(bench, method)(*arguments)
            connection.send(((value, time.process_time() - started, peak_memory(bench)), None))
    except EOFError:
        bench.exit.close()
    except Exception as error:  # raised again by the parent
        connection.send((None, error if isinstance(error, ValueError) else traceback.format_exc()))


def peak_memory(bench: Bench) -> int:
    """Return the peak in bytes of the device's memory, or on a CPU of the whole process."""
    if bench.device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class ContenderProcess:
    """The parent's end of the connection to `serve`."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        context = multiprocessing.get_context("spawn")
        self.connection, child_end = context.Pipe()
        self.process = context.Process(target=serve, args=(child_end, contender), daemon=True)
        self.process.start()
        child_end.close()
        self.peak_memory = 0

    def wait_until_ready(self) -> int:
        """Wait for the model to be built and return its number of parameters."""
        return int(self.answer())

    def answer(self) -> Any:
        try:
            value, error = self.connection.recv()
        except EOFError as end:
            raise ValueError(f"the process of {self.contender.name} ended unexpectedly") from end
        if isinstance(error, ValueError):
            raise error
        if error:
            raise RuntimeError(f"{self.contender.name} failed:\n{error}")
        return value

    def call(self, method: str, *arguments: object) -> Answer:
        meter = LoadMeter()
        self.connection.send((method, arguments))
        value, ours, self.peak_memory = self.answer()
        return Answer(value, meter.others(ours))

    def __enter__(self) -> "ContenderProcess":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.connection.close()
        self.process.join(10)
        self.process.kill()
