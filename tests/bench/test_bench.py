import contextlib
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import Run

from vit_train.bench import process, report
from vit_train.bench.contender import LOOP_STEPS, Bench, Contender, Limited, flops_per_image
from vit_train.bench.machine import LoadMeter, gemm_ceiling
from vit_train.bench.peers import build_peer
from vit_train.bench.process import Answer
from vit_train.bench.results import Result
from vit_train.bench.run import check_parameters
from vit_train.config import BenchConfig
from vit_train.model.config import ViTConfig
from vit_train.model.vit import VisionTransformer
from vit_train.tasks.config import ClassifyConfig


def contender(library: str = "vit_train", batch_size: int = 10, **model: object) -> Contender:
    config = BenchConfig(model=ViTConfig(**model), task=ClassifyConfig())
    return Contender(library, True, batch_size, (3, 32, 32), 10, config)


def result(library: str, **seconds: list[float]) -> Result:
    timings = {name: [Answer(each, 0.0) for each in values] for name, values in seconds.items()}
    return Result(contender(library), 1, 0, timings)


def test_ratios_are_taken_round_by_round() -> None:
    ours = result("vit_train", train=[1, 2, 4])
    peer = result("timm", train=[2, 4, 4])
    assert ours.speed("train").median == 5 and ours.speed("train").low == 2.5
    ratio = ours.ratio("train", peer)
    assert (ratio.low, ratio.median, ratio.high) == (1, 2, 2)


def test_shares_add_up_to_the_whole_loop() -> None:
    ours = result(
        "vit_train",
        input=[0.1], forward=[0.3], gradients=[0.8], train=[0.85], loop=[1.0 * LOOP_STEPS],
    )  # fmt: skip
    expected = {
        "input": 0.1, "forward": 0.3, "backward": 0.5, "optimizer": 0.05, "reporting": 0.05,
    }  # fmt: skip
    assert ours.shares() == pytest.approx(expected)
    assert ours.speed("loop").median == pytest.approx(10)


def test_torchvision_builds_the_same_number_of_parameters() -> None:
    for config in (ViTConfig(), ViTConfig(embed_dim=48, depth=2, num_heads=3, mlp_ratio=2)):
        ours = VisionTransformer(config, 32, 3, 10)
        theirs = build_peer("torchvision", config, 32, 10)
        count = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
        assert count[0] == count[1]


def test_a_missing_library_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("vit_train.bench.peers.import_module", missing)
    with pytest.raises(ValueError, match=r"timm is not installed: pip install -e '\.\[peers\]'"):
        build_peer("timm", ViTConfig(), 32, 10)


def test_the_work_of_a_step_is_counted_without_what_is_never_computed() -> None:
    """One block, T = 65 tokens: keys and values of all tokens, all else for one token alone."""
    dim, tokens, patch = 128, 65, 48
    full = 2 * tokens * dim * 2 * dim  # keys and values
    alone = (
        2 * dim * dim * 2 + 2 * dim * 4 * dim * 2 + 2 * tokens * dim * 2
    )  # q, proj, MLP, QKᵀ, AV
    forward = 2 * 64 * patch * dim + full + alone + 2 * dim * 10
    # Backward computes two products for each of the forward, but none for the images.
    expected = 3 * forward - 2 * 64 * patch * dim
    assert flops_per_image(contender(depth=1)) == expected


def test_the_load_meter_sees_others_and_not_ourselves() -> None:
    meter = LoadMeter()
    if meter.busy is None:
        pytest.skip("nothing here tells the load")
    time.sleep(0.3)
    before = meter.others(0.0)
    assert before is not None and meter.others(1000.0) == 0.0


def test_the_ceiling_leaves_the_threads_as_they_were() -> None:
    threads = torch.get_num_threads()
    assert gemm_ceiling(torch.device("cpu"), torch.float32, 0.05) > 1e9
    assert torch.get_num_threads() == threads


def test_bench_measures_ours_and_a_peer_and_leaves_table_json_and_figure(run: Run) -> None:
    outcome = run(
        "vit-bench", "model.embed_dim=16", "model.depth=1", "data.train_images=100",
        "data.test_images=10", "bench.batch_sizes=[8]", "bench.peers=[torchvision]",
        "bench.rounds=1", "bench.seconds=0.05", "hydra.run.dir=bench",
    )  # fmt: skip
    assert outcome.status == 0, outcome.err
    for name in (
        "| vit_train |",
        "| torchvision |",
        "| torchvision, our allocator |",
        "whole loop",
    ):
        assert name in outcome.out
    assert "| torchvision |" in Path("bench/bench.md").read_text(encoding="utf-8")
    report = json.loads(Path("bench/bench.json").read_text(encoding="utf-8"))
    names = [each["name"] for each in report["results"][0]["contenders"]]
    assert names == ["vit_train", "torchvision", "torchvision, our allocator"]
    assert Path("bench/bench.png").stat().st_size > 5000


def test_bench_refuses_unknown_peers(run: Run) -> None:
    outcome = run("vit-bench", "bench.peers=[keras]")
    assert outcome.status == 1
    assert "bench.peers=keras must be one of: timm, torchvision, vit-pytorch" in outcome.err


def rows_of(text: str) -> list[dict[str, str]]:
    """A Markdown table's rows by column; of columns that are called alike, "NAME 2" and so on."""
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()
    ]
    names = [
        f"{name} {header[:place].count(name) + 1}" if name in header[:place] else name
        for place, name in enumerate(header)
    ]
    return [dict(zip(names, row, strict=True)) for row in rows]


def measured() -> list[Result]:
    """Batches of 10: we train 40 images/s and infer 100, the peer 10 and 200."""
    ours = result(
        "vit_train", train=[0.25] * 3, infer=[0.1] * 3, forward=[0.1] * 3, gradients=[0.2] * 3,
        input=[0.05] * 3, loop=[0.4 * LOOP_STEPS] * 3,
    )  # fmt: skip
    peer = result("timm", train=[1.0, 2.0, 0.5], infer=[0.05] * 3)
    ours.peak_memory, peer.peak_memory = 2**30, 2**21
    return [ours, peer]


def test_the_table_says_how_many_times_faster_we_are() -> None:
    ours, peer = rows_of(report.table(measured()))
    assert ours == {
        "batch 10": "vit_train", "parameters": "1", "training, images/s": "40 (40–40)",
        "ours to it": "", "inference, images/s": "100 (100–100)", "ours to it 2": "",
        "peak memory": "1,024 MB",
    }  # fmt: skip
    assert peer == {
        "batch 10": "timm, our allocator", "parameters": "1", "training, images/s": "10 (5–20)",
        "ours to it": "4.00 (2.00–8.00)", "inference, images/s": "200 (200–200)",
        "ours to it 2": "0.50 (0.50–0.50)", "peak memory": "2 MB",
    }  # fmt: skip


def test_the_notes_and_the_json_say_the_same() -> None:
    results = measured()
    content = report.as_json(results, 2 * 10**9, [1e11, 2e11, 4e11])
    assert content["batch_size"] == 10 and content["gflop_per_image"] == 2
    assert content["gemm_gflops"] == [100, 200, 400]
    ours, peer = content["contenders"]
    assert ours["ours_to_it"] == {} and (ours["name"], peer["name"]) == (
        "vit_train", "timm, our allocator",
    )  # fmt: skip
    assert peer["ours_to_it"] == {
        "train": {"median": 4, "low": 2, "high": 8},
        "infer": {"median": 0.5, "low": 0.5, "high": 0.5},
    }
    assert peer["images_per_s"]["train"] == {
        "median": 10, "low": 5, "high": 20, "rounds": [10, 5, 20],
    }  # fmt: skip
    assert ours["images_per_s"]["loop"]["median"] == pytest.approx(25)
    assert (ours["peak_memory_bytes"], peer["timings_disturbed"]) == (2**30, "0 of 6")
    notes = report.notes(results[0], 2 * 10**9, [1e11, 2e11, 4e11], results)
    assert "whole loop 25 (25–25) images/s, 0.625 (0.625–0.625) of the bare step" in notes
    # 40 images/s of 2 GFLOP each are 80 of 200 GFLOP/s.
    assert "2.000 GFLOP an image: 80 GFLOP/s, 40% of what large" in notes
    assert "input alone: 200 images/s" in notes and "0 of 24 timings were disturbed" in notes


def test_a_call_takes_its_median_time_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now, durations = 0.0, [100.0, 50.0, 1.0, 9.0, 2.0, 3.0, 4.0]

    def work() -> None:
        nonlocal now
        now += durations.pop(0)

    monkeypatch.setattr("time.perf_counter", lambda: now)
    bench = object.__new__(Bench)
    bench.work, bench.device = {"train": work}, torch.device("cpu")
    assert bench.time("train", seconds=14.5) == 2.5  # of 1, 9, 2, 3
    assert durations == [4.0]
    durations[:] = [1.0] * 2 + [7.0, 5.0, 6.0]
    assert bench.time("train", seconds=1) == 6  # three at least


def test_the_chart_shows_medians_from_worst_to_best() -> None:
    figure = report.chart([measured()], "title")
    train, infer = figure.axes
    for axis, heights in ((train, [40, 10]), (infer, [100, 200])):
        assert [patch.get_height() for patch in axis.patches] == pytest.approx(heights)
    (segment,) = train.containers[-1].errorbar.lines[2][0].get_segments()
    assert segment[:, 1].tolist() == [5, 20]


def test_a_peer_of_another_size_is_refused() -> None:
    ours = result("vit_train")
    ours.parameters = 1000
    for parameters, fits in ((1000, True), (995, True), (1005, True), (980, False), (1020, False)):
        peer = result("timm")
        peer.parameters = parameters
        with contextlib.nullcontext() if fits else pytest.raises(ValueError, match="be compared"):
            check_parameters([ours, peer])


def test_a_short_loop_goes_on_through_the_epochs() -> None:
    class TrainLoader:
        batch_size = 1

        def epoch(self, epoch: int, first: int = 0) -> list[tuple[int, int]]:
            return [(epoch, batch) for batch in range(3)]

    short = Limited(TrainLoader(), steps=2)
    assert [list(short.epoch(0)) for _ in range(3)] == [
        [(0, 0), (0, 1)], [(0, 2), (1, 0)], [(1, 1), (1, 2)],
    ]  # fmt: skip


def test_the_ceiling_is_the_best_products_two_operations_a_term(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, durations = 0.0, iter([4.0, 2.0, 8.0])

    def product(*what: object, **more: object) -> None:
        nonlocal now
        now += next(durations)

    monkeypatch.setattr("time.perf_counter", lambda: now)
    monkeypatch.setattr(torch, "matmul", product)
    assert gemm_ceiling(torch.device("cpu"), torch.float32, 13.0) == 2 * 2048**3 / 2


def test_shares_are_of_the_median_round() -> None:
    ours = result(
        "vit_train",
        input=[0.1, 9, 0.1], forward=[0.3, 0.3, 9], gradients=[0.8, 9, 0.8], train=[0.85, 9, 0.85],
        loop=[LOOP_STEPS, 99, LOOP_STEPS],
    )  # fmt: skip
    assert ours.shares()["forward"] == pytest.approx(0.3)


@pytest.mark.parametrize("platform, unit", [("linux", 1024), ("darwin", 1)])
def test_memory_is_told_in_bytes(monkeypatch: pytest.MonkeyPatch, platform: str, unit: int) -> None:
    usage = SimpleNamespace(ru_maxrss=3000)
    monkeypatch.setattr(process.resource, "getrusage", lambda _: usage)
    monkeypatch.setattr(process.sys, "platform", platform)
    bench = SimpleNamespace(device=torch.device("cpu"))
    assert process.peak_memory(bench) == 3000 * unit
