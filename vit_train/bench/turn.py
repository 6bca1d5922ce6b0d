"""A contender's turn: start-up, first step, warm-up, and the timings of its work."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import torch
from torch import nn

from vit_train.bench.machine import LoadMeter, peak_memory, synchronize
from vit_train.engine.graphed_step import WARM_UP

Work = Callable[[], object]

# What is timed, and for how long relative to bench.seconds.
SHARES = {"train": 1.0, "gradients": 0.6, "input": 0.1, "loop": 1.0, "infer": 0.5}
# A warm-up ends when two successive windows agree this well, and after this many windows.
TOLERANCE = 0.05
WINDOWS = 8
# The calls before: with the first step, they compile and record what a GPU is to replay.
FIRST_CALLS = WARM_UP
# On a GPU, calls are queued one after the other, as in training, and waited for together.
QUEUED = 10


class Timing(NamedTuple):
    """The median time of a call and the circumstances.

    `others` is how many cores other programs used meanwhile, if known; `stable` is whether the
    warm-up ended because the speed no longer changed.
    """

    seconds: float
    others: float | None
    stable: bool


@dataclass(frozen=True)
class Turn:
    """What one process has measured; times in seconds, memory in bytes.

    `start_up` is from the start of the process until the model and the optimizer are built,
    `first_step` the first training step with all compilation, `peak_memory` that of training.
    """

    parameters: int
    start_up: float
    first_step: float
    peak_memory: int
    timings: dict[str, Timing]


@dataclass
class Subject:
    """A contender's model, ready to train, and its work by name, training first.

    Each call processes one batch, except for "loop". `exit` closes what the work has opened.
    """

    device: torch.device
    model: nn.Module
    first_step: Work
    work: dict[str, Work]
    exit: ExitStack = field(default_factory=ExitStack)


def take_turn(subject: Subject, seconds: float, started: float) -> Turn:
    """Time all work; `started` is the time.monotonic() at which the process was started."""
    with subject.exit:
        synchronize(subject.device)
        start_up = time.monotonic() - started
        first_step = duration(subject.first_step, subject.device, calls=1)
        timings, peak = {}, 0
        for name, work in subject.work.items():
            timings[name] = time_calls(work, subject.device, SHARES[name] * seconds)
            # Training comes first: what follows holds the data, too.
            peak = peak or peak_memory(subject.device)
    parameters = sum(parameter.numel() for parameter in subject.model.parameters())
    return Turn(parameters, start_up, first_step, peak, timings)


def time_calls(work: Work, device: torch.device, seconds: float) -> Timing:
    """Return the median time of a call, from calls during `seconds` after a warm-up."""
    stable = warm_up(work, device, seconds)
    meter, before = LoadMeter(), time.process_time()
    times = window(work, device, seconds, least=3)
    return Timing(median(times), meter.others(time.process_time() - before), stable)


def warm_up(work: Work, device: torch.device, seconds: float) -> bool:
    """Call until the speed is stable, at most for about `seconds`; return whether it became so."""
    for _ in range(FIRST_CALLS):
        duration(work, device, calls=1)
    end, last = time.perf_counter() + seconds, None
    while last is None or time.perf_counter() < end:
        now = median(window(work, device, seconds / WINDOWS, least=1))
        if last is not None and abs(now / last - 1) <= TOLERANCE:
            return True
        last = now
    return False


def window(work: Work, device: torch.device, seconds: float, least: int) -> list[float]:
    """Return the times of the calls that begin within `seconds`, of `least` calls at least."""
    calls = QUEUED if device.type == "cuda" else 1
    end, times = time.perf_counter() + seconds, list[float]()
    while len(times) < least or time.perf_counter() < end:
        times.append(duration(work, device, calls))
    return times


def duration(work: Work, device: torch.device, calls: int) -> float:
    """Return the seconds that a call takes until its result is there, the mean of several."""
    synchronize(device)
    started = time.perf_counter()
    for _ in range(calls):
        work()
    synchronize(device)
    return (time.perf_counter() - started) / calls
