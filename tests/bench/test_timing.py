"""How work is timed."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from line_up import CPU, Clock

from vit_train.bench import machine, turn
from vit_train.bench.machine import LoadMeter, gemm_ceiling


def test_a_figure_is_the_median_of_the_calls_after_a_warm_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch, [900.0, 70.0, 70.0, 50.0, 10.0, 10.1, 1.0, 90.0, 2.0, 3.0, 8.0])
    timing = turn.time_calls(clock.work, CPU, seconds=80.0)
    assert timing.seconds == 2 and timing.stable  # of 1, 90 and, three at least, 2
    assert clock.durations == [3.0, 8.0]


def test_a_warm_up_ends_when_two_windows_agree_or_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Windows of 1 s: their medians are 0.6, 0.5, 0.5.
    clock = Clock(monkeypatch, [9.0, 9.0, 9.0, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 99.0])
    assert turn.warm_up(clock.work, CPU, seconds=8.0)
    assert clock.durations == [99.0]
    clock = Clock(monkeypatch, [float(1 + number % 2) for number in range(20)])
    assert not turn.warm_up(clock.work, CPU, seconds=8.0)
    assert clock.now == 12 and len(clock.durations) == 12  # 3 s for the first two calls


def test_calls_on_a_gpu_are_queued_and_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(turn, "synchronize", lambda _: events.append("wait"))
    clock = Clock(monkeypatch, [1.0] * 10)
    device = torch.device("cuda")
    assert turn.window(lambda: (events.append("call"), clock.work()), device, 5.0, 1) == [1.0]
    assert events == ["wait", *["call"] * turn.QUEUED, "wait"]


def test_the_load_meter_sees_others_and_not_ourselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 7 s that all cores were busy in 2 s, some were our own; waiting is no work."""
    stat = tmp_path / "stat"
    monkeypatch.setattr(machine, "STAT", stat)
    monkeypatch.setattr(machine.os, "sysconf", lambda name: 100)  # ticks a second
    monkeypatch.setattr(machine.time, "perf_counter", iter([10.0, 12.0, 12.0]).__next__)
    stat.write_text("cpu 100 0 50 9999 77 1 2 3\ncpu0 …", encoding="utf-8")
    meter = LoadMeter()
    stat.write_text("cpu 500 100 250 99999 999 1 2 3\ncpu0 …", encoding="utf-8")
    assert meter.others(4.0) == 1.5 and meter.others(1000.0) == 0.0


def test_the_ceiling_is_the_best_products_two_operations_a_term(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads = torch.get_num_threads()
    clock = Clock(monkeypatch, [4.0, 2.0, 8.0])
    monkeypatch.setattr(torch, "matmul", clock.work)
    monkeypatch.setattr(machine, "CORES", threads)
    assert gemm_ceiling(CPU, "fp32", 13.0) == 2 * 2048**3 / 2
    assert torch.get_num_threads() == threads


def test_memory_is_told_in_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import resource

    (tmp_path / "status").write_text("VmPeak: 9 kB\nVmHWM:\t  3000 kB\n", encoding="utf-8")
    monkeypatch.setattr(machine, "STATUS", tmp_path / "status")
    assert machine.peak_memory(CPU) == 3000 * 1024
    monkeypatch.setattr(machine, "STATUS", tmp_path / "none")
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=3000))
    for platform, unit in (("linux", 1024), ("darwin", 1)):
        monkeypatch.setattr(machine.sys, "platform", platform)
        assert machine.peak_memory(CPU) == 3000 * unit
