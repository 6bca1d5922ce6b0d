"""One contender's turn in a process of its own: `python -m benchmarks.turn JSON` prints JSON."""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from torch._C._profiler import _ExperimentalConfig

from benchmarks.models import Contender, Subject, build
from vit_train.config.run import CONF_DIR, TrainConfig, register_schemas, to_config

# A warm-up ends when two windows, each this share of the time, agree to the tolerance.
WINDOWS, TOLERANCE = 8, 0.05
# On a GPU, calls are queued one after the other, as in training, and waited for together.
QUEUED = 10
STAT = Path("/proc/stat")


def composed(overrides: list[str]) -> TrainConfig:
    """Return the settings that `vit-train OVERRIDES` would have."""
    register_schemas()
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        return to_config(compose("train", overrides), TrainConfig)


def measure(contender: Contender, overrides: list[str], seconds: float) -> dict[str, Any]:
    """Return images/s by kind of work, and the circumstances."""
    config = composed(overrides)
    with ExitStack() as exit:
        subject = build(contender, config, exit)
        found: dict[str, Any] = {
            "parameters": sum(parameter.numel() for parameter in subject.model.parameters()),
            "first_step_s": call(subject.first_step, subject.device, 1),
        }
        for name, work in subject.work.items():
            took, stable, others = time_calls(work, subject.device, seconds)
            images = config.train.batch_size * subject.batches.get(name, 1)
            found[name] = {"images_per_s": images / took, "stable": stable, "others": others}
    return found


def trace(contender: Contender, overrides: list[str], path: str) -> None:
    """Write a trace of three training steps for https://ui.perfetto.dev."""
    with ExitStack() as exit:
        subject: Subject = build(contender, composed(overrides), exit)
        subject.first_step()
        call(subject.work["train"], subject.device, 5)
        workers_too = _ExperimentalConfig(profile_all_threads=True)
        with torch.profiler.profile(experimental_config=workers_too) as profiler:
            call(subject.work["train"], subject.device, 3)
    profiler.export_chrome_trace(path)


def time_calls(
    work: Callable[[], object], device: torch.device, seconds: float
) -> tuple[float, bool, float | None]:
    """Return the median seconds of a call, whether the warm-up became stable, and others' load.

    The load is in cores that other programs used meanwhile; None if it is not known.
    """
    stable = warm_up(work, device, seconds)
    busy, own, began = busy_seconds(), time.process_time(), time.perf_counter()
    times = window(work, device, seconds, least=3)
    own, took = time.process_time() - own, time.perf_counter() - began
    now = busy_seconds()
    others = None if busy is None or now is None else max(0.0, now - busy - own) / took
    return median(times), stable, others


def warm_up(work: Callable[[], object], device: torch.device, seconds: float) -> bool:
    """Call until the speed is stable, at most for about `seconds`; return whether it became so."""
    call(work, device, 3)  # which compile, and record what a GPU is to replay
    end, last = time.perf_counter() + seconds, None
    while last is None or time.perf_counter() < end:
        now = median(window(work, device, seconds / WINDOWS, least=1))
        if last is not None and abs(now / last - 1) <= TOLERANCE:
            return True
        last = now
    return False


def window(
    work: Callable[[], object], device: torch.device, seconds: float, least: int
) -> list[float]:
    """Return the seconds of the calls that begin within `seconds`, of `least` calls at least."""
    count = QUEUED if device.type == "cuda" else 1
    end, times = time.perf_counter() + seconds, list[float]()
    while len(times) < least or time.perf_counter() < end:
        times.append(call(work, device, count))
    return times


def call(work: Callable[[], object], device: torch.device, count: int) -> float:
    """Return the seconds that a call takes until its result is there, the mean of `count`."""
    synchronize(device)
    began = time.perf_counter()
    for _ in range(count):
        work()
    synchronize(device)
    return (time.perf_counter() - began) / count


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()


def busy_seconds() -> float | None:
    """Return the seconds that all cores have worked since boot; None if that is not known."""
    if not STAT.exists():
        return None
    fields = STAT.read_text(encoding="utf-8").split("\n")[0].split()[1:9]
    user, nice, system, _idle, _wait, *interrupts = map(int, fields)
    return sum((user, nice, system, *interrupts)) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    name, overrides, seconds, traced = json.loads(sys.argv[1])
    if traced:
        trace(Contender.parse(name), overrides, traced)
    else:
        print(f"\n{json.dumps(measure(Contender.parse(name), overrides, seconds))}")
