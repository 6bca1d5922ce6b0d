"""The machine's peak speed, its memory, and its load from other programs during a measurement."""

import os
import re
import sys
import time
from pathlib import Path

import torch

from vit_train.engine.precision import set_precision
from vit_train.engine.workers import CORES

STAT = Path("/proc/stat")
STATUS = Path("/proc/self/status")


class LoadMeter:
    """A meter of the cores that other programs, and other guests of the host, use."""

    def __init__(self) -> None:
        self.started, self.busy = time.perf_counter(), self.total_busy()

    @staticmethod
    def total_busy() -> float | None:
        """Return the seconds all cores have worked since boot, or None if that is unknown."""
        if not STAT.exists():
            return None
        user, nice, system, _idle, _wait, *interrupts = (
            STAT.read_text(encoding="utf-8").split("\n")[0].split()[1:9]
        )
        ticks = sum(map(int, (user, nice, system, *interrupts)))
        return ticks / os.sysconf("SC_CLK_TCK")

    def others(self, ours: float) -> float | None:
        """Return how many cores were busy since the start with anything but our own work.

        `ours` is our own work, in seconds. Return None if the load is unknown.
        """
        busy = self.total_busy()
        if busy is None or self.busy is None:
            return None
        return max(0.0, busy - self.busy - ours) / (time.perf_counter() - self.started)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that it was told."""
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()


def peak_memory(device: torch.device) -> int:
    """Return the peak in bytes of the GPU's memory, or without one of the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    if STATUS.exists():
        # Not getrusage: on Linux its peak includes that of the process that started this one.
        return 1024 * int(re.findall(r"VmHWM:\s*(\d+) kB", STATUS.read_text(encoding="utf-8"))[0])
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def gemm_ceiling(device: torch.device, precision: str, seconds: float = 0.5) -> float:
    """Return the best FLOP/s of several products of large square matrices, on all cores."""
    size = 2048 if device.type == "cpu" else 8192
    dtype = set_precision(precision, device).dtype
    threads = torch.get_num_threads()
    torch.set_num_threads(CORES)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    result = left @ right
    best, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        synchronize(device)
        started = time.perf_counter()
        torch.matmul(left, right, out=result)
        synchronize(device)
        best = max(best, 2 * size**3 / (time.perf_counter() - started))
    torch.set_num_threads(threads)
    return best
