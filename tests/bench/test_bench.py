import json
import time
from pathlib import Path

import pytest
import torch
from conftest import Run

from vit_train.bench.contender import LOOP_STEPS, Contender, flops_per_image
from vit_train.bench.machine import LoadMeter, gemm_ceiling
from vit_train.bench.peers import build_peer
from vit_train.bench.process import Answer
from vit_train.bench.results import Result
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
    with pytest.raises(
        ValueError, match=r"timm is not installed: pip install 'vit-train\[peers\]'"
    ):
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
    assert "| torchvision |" in Path("bench/bench.md").read_text()
    report = json.loads(Path("bench/bench.json").read_text())
    names = [each["name"] for each in report["results"][0]["contenders"]]
    assert names == ["vit_train", "torchvision", "torchvision, our allocator"]
    assert Path("bench/bench.png").stat().st_size > 5000


def test_bench_refuses_unknown_peers(run: Run) -> None:
    outcome = run("vit-bench", "bench.peers=[keras]")
    assert outcome.status == 1
    assert "bench.peers=keras must be one of: timm, torchvision, vit-pytorch" in outcome.err
