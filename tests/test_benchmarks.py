"""The benchmark: what it builds, how it times, and what it prints."""

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as bench
from benchmarks import turn
from benchmarks.models import Contender, build, make_peer
from vit_train.model.config import ViTConfig
from vit_train.model.vit import VisionTransformer

CPU = torch.device("cpu")
TOP = Path(__file__).parents[1]
SMALL = ["data.train_images=200", "data.test_images=20", "model.embed_dim=16", "model.depth=1"]


class Clock:
    """Time that passes only in calls, each of the next of these durations."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, durations: list[float]) -> None:
        self.now, self.durations = 0.0, durations
        monkeypatch.setattr("time.perf_counter", lambda: self.now)

    def work(self) -> None:
        self.now += self.durations.pop(0)


def test_a_contender_is_a_package_and_words() -> None:
    found = Contender.parse("timm:bf16:written_out", "fp32")
    assert (found.package, found.precision, found.words) == ("timm", "bf16", ("written_out",))
    assert Contender.parse("vit_train", "bf16").name == "vit_train:bf16"
    assert Contender.parse(found.name) == found
    for text, words in {
        "keras": "keras must be one of: vit_train, timm",
        "timm:fused": "timm:fused: fused must be one of: fp32, bf16",
    }.items():
        with pytest.raises(ValueError, match=words):
            Contender.parse(text, "fp32")


def test_torchvision_builds_the_same_number_of_parameters() -> None:
    for config in (ViTConfig(), ViTConfig(embed_dim=48, depth=2, num_heads=3, mlp_ratio=2)):
        theirs = make_peer(Contender("torchvision", "fp32"), config, 32, 10)
        ours = VisionTransformer(config, 32, 3, 10)
        counts = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
        assert counts[0] == counts[1]


@pytest.mark.parametrize("text", ["vit_train", "vit_train:scratch", "torchvision:allocator"])
def test_what_is_timed_trains_and_infers(text: str) -> None:
    config = turn.composed([*SMALL, "train.batch_size=8", "device=cpu"])
    with ExitStack() as exit:
        subject = build(Contender.parse(text), config, exit)
        before = [parameter.clone() for parameter in subject.model.parameters()]
        subject.first_step()
        for work in subject.work.values():
            work()
        assert not any(map(torch.equal, before, subject.model.parameters()))
        assert next(iter(subject.work)) == "train" and not subject.model.training
        if "loop" in subject.work:
            assert subject.batches == {"loop": 8}


def test_a_figure_is_the_median_of_the_calls_after_a_warm_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch, [900.0, 70.0, 70.0, 50.0, 10.0, 10.1, 1.0, 90.0, 2.0, 3.0, 8.0])
    seconds, stable, _ = turn.time_calls(clock.work, CPU, seconds=80.0)
    assert seconds == 2 and stable  # of 1, 90 and, three at least, 2
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


def test_calls_on_a_gpu_are_queued_and_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    monkeypatch.setattr(turn, "synchronize", lambda _: events.append("wait"))
    clock = Clock(monkeypatch, [1.0] * 10)

    def work() -> None:
        events.append("call")
        clock.work()

    assert turn.window(work, torch.device("cuda"), 5.0, 1) == [1.0]
    assert events == ["wait", *["call"] * turn.QUEUED, "wait"]


def test_the_load_counts_work_and_not_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "STAT", tmp_path / "stat")
    monkeypatch.setattr("os.sysconf", lambda name: 100)  # ticks a second
    assert turn.busy_seconds() is None
    (tmp_path / "stat").write_text("cpu 100 0 50 9999 77 1 2 3\ncpu0 …", encoding="utf-8")
    assert turn.busy_seconds() == 1.56


def test_another_one_begins_each_round_and_who_fails_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    order: list[str] = []

    def take(contender: Contender, *what: object) -> dict[str, object]:
        order.append(contender.package)
        if contender.package == "timm" and len(order) > 3:
            raise ValueError("no memory")
        return {}

    monkeypatch.setattr(bench, "turn", take)
    three = [Contender(name, "fp32") for name in ("vit_train", "timm", "torchvision")]
    found = bench.rounds(three, [], 3, 1.0)
    assert order == [*("vit_train", "timm", "torchvision"), "timm", "torchvision", "vit_train",
                     "torchvision", "vit_train"]  # fmt: skip
    assert [len(turns) for turns in found.values()] == [3, 0, 3]
    assert "timm:fp32 could not be measured: no memory" in capsys.readouterr().out


def timing(speed: float, others: float = 0.0, stable: bool = True) -> dict[str, object]:
    return {"images_per_s": speed, "others": others, "stable": stable}


def test_ratios_are_taken_within_a_round_and_against_the_same_precision() -> None:
    def taken(*speeds: float, parameters: int = 1000) -> list[dict[str, object]]:
        return [
            {"train": timing(speed, others=0.2), "infer": timing(10 * speed, stable=False),
             "first_step_s": 1.0, "parameters": parameters}
            for speed in speeds
        ]  # fmt: skip

    contenders = [Contender.parse(each) for each in ("vit_train", "vit_train:bf16", "timm:bf16")]
    found = {
        "vit_train:fp32": taken(1, 1),
        "vit_train:bf16": taken(300, 200),
        "timm:bf16": taken(100, 50, parameters=1011),
    }
    text = bench.table(64, contenders, found)
    (row,) = (line for line in text.splitlines() if line.startswith("| timm"))
    assert "| 75 (50–100) |" in row and "| 3.50 (3.00–4.00) |" in row
    assert "timm:bf16 is another model: 1,011 parameters" in text
    assert "6 of 12 timings were disturbed" in text and "6 of 12 warm-ups ended" in text


@pytest.mark.slow
def test_as_it_is_typed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks", "vit_train", "torchvision:bf16"]
    command += ["--rounds", "1", "--seconds", "0.1", "--batch-sizes", "8", "--out", str(tmp_path)]
    ended = subprocess.run(
        [*command, "--set", *SMALL, "--trace", str(tmp_path / "trace.json")],
        capture_output=True, text=True, cwd=TOP, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "| vit_train:fp32 |" in ended.stdout and "| torchvision:bf16 |" in ended.stdout
    turns = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))["turns"]["8"]
    assert turns["vit_train:fp32"][0]["loop"]["images_per_s"] > 0
    assert "traceEvents" in (tmp_path / "trace.json").read_text(encoding="utf-8")
