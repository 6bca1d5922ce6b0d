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
from benchmarks.models import Contender, build

CPU = torch.device("cpu")
TOP = Path(__file__).parents[1]
SMALL = ["data.train_images=200", "data.test_images=20", "model.embed_dim=16", "model.depth=1"]


def test_a_contender_is_a_package_and_words() -> None:
    found = Contender.parse("timm:bf16:unfused", "fp32")
    assert (found.package, found.precision, found.words) == ("timm", "bf16", ("unfused",))
    assert Contender.parse("vit_train", "bf16").name == "vit_train:bf16"
    assert Contender.parse(found.name) == found
    for text, words in {
        "keras": "keras must be one of: vit_train, timm",
        "timm:fused": "timm:fused: fused must be one of: fp32, bf16",
    }.items():
        with pytest.raises(ValueError, match=words):
            Contender.parse(text, "fp32")


@pytest.mark.parametrize("text", ["vit_train", "vit_train:scratch", "torchvision:allocator"])
def test_a_contender_trains_and_infers(text: str) -> None:
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
def test_the_benchmark_runs_from_the_command_line(tmp_path: Path) -> None:
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
