"""A whole benchmark: rounds, failures, and what a user sees."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conftest import Run
from line_up import contenders

from vit_train.bench import peers, report, rounds, turn
from vit_train.bench.alone import Failed, alone
from vit_train.bench.contender import Contender
from vit_train.bench.machine import gemm_ceiling
from vit_train.bench.rounds import Rounds, rotated
from vit_train.bench.turn import Timing, Turn
from vit_train.files.reading import read_json


def test_another_one_is_first_in_every_round() -> None:
    assert [rotated(range(3), number) for number in range(4)] == [
        [0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2],
    ]  # fmt: skip


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of those who had a turn; nothing is measured, and all are installed."""
    names: list[str] = []
    one = Turn(1, 1.0, 1.0, 1, {name: Timing(1.0, 0.0, True) for name in turn.SHARES})
    monkeypatch.setattr(
        rounds, "turn", lambda contender, cache: (names.append(contender.name), one)[1]
    )
    monkeypatch.setattr(rounds, "alone", lambda *_: 1e9)
    monkeypatch.setattr(rounds, "is_installed", lambda _: True)
    return names


def test_turns_alternate(turns: list[str], tmp_path: Path) -> None:
    all_rounds = Rounds(contenders("shipped"), tmp_path / "failures.log")
    assert len(list(all_rounds.measure(3))) == 3
    assert [name.split()[0] for name in turns] == [
        "vit_train", "timm", "timm", "vit_train", "vit_train", "timm",
    ]  # fmt: skip
    comparison = all_rounds.comparison(1)
    assert [len(each.turns) for each in comparison.results] == [3, 3]
    assert comparison.ceilings == [1e9] * 3


def test_no_round_begins_that_would_end_too_late(
    turns: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def pass_time(*arguments: object) -> float:
        nonlocal now
        now += 60
        return 1.0

    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr(rounds, "alone", pass_time)
    all_rounds = Rounds(contenders(of=()), tmp_path / "failures.log")
    assert len(list(all_rounds.measure(9, 210))) == 3


def test_who_fails_is_left_out_with_a_line_and_the_others_go_on(
    turns: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = rounds.turn

    def failing(contender: Contender, cache: Path) -> Turn:
        if "compiled" in contender.name and len(turns) > 2:
            raise Failed("no C++ compiler", "g++: not found")
        return measure(contender, cache)

    monkeypatch.setattr(rounds, "turn", failing)
    all_rounds = Rounds(contenders("shipped", "compiled"), tmp_path / "failures.log")
    list(all_rounds.measure(3))
    comparison = all_rounds.comparison(1)
    assert [each.contender.name for each in comparison.results] == [
        "vit_train (fused, fp32)", "timm (fp32)",
    ]  # fmt: skip
    line = "timm (fp32, compiled) could not be measured: no C++ compiler"
    assert line in report.notes(comparison)
    assert report.as_json(comparison)["failed"] == {
        "timm (fp32, compiled)": "no C++ compiler (more in failures.log)"
    }
    assert "g++: not found" in (tmp_path / "failures.log").read_text(encoding="utf-8")
    assert turns.count("timm (fp32, compiled)") == 1


def test_without_ours_there_is_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> Turn:
        raise Failed("out of memory", "")

    monkeypatch.setattr(rounds, "turn", fail)
    all_rounds = Rounds(contenders(of=()), tmp_path / "failures.log")
    with pytest.raises(ValueError, match=r"vit_train \(.*\) could not be measured: out of memory"):
        list(all_rounds.measure(1))


STAND_IN = """
from vit_train.model.config import ViTConfig
from vit_train.model.vit import VisionTransformer as Model

def VisionTransformer(img_size, num_classes, **shape):
    return Model(ViTConfig(**shape), img_size, 3, num_classes)
"""


@pytest.fixture
def peers_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something that is called timm, and nothing that is called vit_pytorch."""
    (tmp_path / "timm/models").mkdir(parents=True)
    (tmp_path / "timm/models/vision_transformer.py").write_text(STAND_IN, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    find = rounds.find_spec
    monkeypatch.setattr(
        rounds, "find_spec", lambda name: None if name == "vit_pytorch" else find(name)
    )


def test_bench_measures_ours_and_a_peer_and_leaves_table_json_and_figure(
    run: Run, peers_here: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Starting a process costs seconds; ours has its own.
    def quickly(cache: Path, call: Callable[..., object], *given: object) -> object:
        if call is gemm_ceiling:
            return 1e9
        return call(*given) if call is peers.measure else alone(cache, call, *given)

    monkeypatch.setattr(rounds, "alone", quickly)
    outcome = run(
        "vit-bench", "model.embed_dim=16", "model.depth=1", "data.train_images=100",
        "data.test_images=10", "bench.batch_sizes=[8]", "bench.peers=[timm,vit-pytorch]",
        "bench.variants=[shipped]", "bench.rounds=1", "bench.seconds=0.05",
        "task.class_weights=auto", "hydra.run.dir=bench",
    )  # fmt: skip
    assert outcome.status == 0, outcome.err
    assert "measuring 1 round with batches of 8, about" in outcome.out
    for shown in (outcome.out, Path("bench/bench.md").read_text(encoding="utf-8")):
        for words in (
            "| vit_train (fused, fp32) ", "| timm (fp32) ", "whole loop",
            "each contender alone in its process", torch.__version__,
            "vit-pytorch (fp32) could not be measured: it is not installed: pip",
            "fastest peer in the table, training: timm (fp32)",
        ):  # fmt: skip
            assert words in shown
    content = read_json(Path("bench/bench.json"))
    assert {"machine", "versions", "commit", "how"} <= content.keys()
    (measured,) = content["results"]
    assert [each["package"] for each in measured["contenders"]] == ["vit_train", "timm"]
    assert measured["contenders"][0]["start_up_s"]["median"] > 0
    assert Path("bench/bench.png").stat().st_size > 5000
    again = run("vit-bench", "hydra.run.dir=bench")
    assert again.status == 1 and "bench already holds a benchmark" in again.err


def test_bench_refuses_unknown_peers_and_what_it_would_not_measure(run: Run) -> None:
    swept = run("vit-bench", "-m", "seed=0,1")
    assert (
        swept.status == 1 and "only vit-train sweeps" in swept.err and not Path("multirun").exists()
    )
    for name in ("resume", "extend"):
        outcome = run("vit-bench", f"{name}=outputs/a")
        assert outcome.status == 1 and f"no {name}=" in outcome.err
    outcome = run("vit-bench", "bench.peers=[keras]")
    assert outcome.status == 1
    assert "bench.peers=keras must be one of: timm, torchvision, vit-pytorch" in outcome.err


def test_presets_for_a_gpu_and_a_cpu(run: Run) -> None:
    outcome = run("vit-bench", "bench=cpu", "--cfg", "job")
    assert outcome.status == 0 and "allocator+compiled" in outcome.out
    if not torch.cuda.is_available():
        outcome = run("vit-bench", "bench=h100")
        assert outcome.status == 1 and "device=cuda, but PyTorch finds no GPU here" in outcome.err
