"""What a benchmark reports."""

from dataclasses import replace

import pytest
from line_up import contenders, result

from vit_train.bench import report
from vit_train.bench.ours import LOOP_STEPS
from vit_train.bench.results import Comparison, Result
from vit_train.bench.turn import Timing, Turn


def test_ratios_are_taken_round_by_round() -> None:
    ours, peer = contenders("shipped")
    ours, peer = result(ours, train=[1, 2, 4]), result(peer, train=[2, 4, 4])
    assert ours.speed("train").median == 5 and ours.speed("train").low == 2.5
    ratio = ours.ratio("train", peer)
    assert (ratio.low, ratio.median, ratio.high) == (1, 2, 2)


def test_shares_add_up_to_the_whole_loop_and_are_of_the_median_round() -> None:
    ours, *_ = contenders()
    measured = result(
        ours,
        input=[0.1, 9, 0.1], gradients=[0.8, 9, 0.8], train=[0.85, 9, 0.85],
        loop=[LOOP_STEPS, 99, LOOP_STEPS],
    )  # fmt: skip
    expected = {
        "input": 0.1, "forward and backward": 0.8, "optimizer": 0.05, "reporting": 0.05,
    }  # fmt: skip
    assert measured.shares() == pytest.approx(expected)
    assert measured.speed("loop").median == pytest.approx(10)
    measured.contender = replace(ours, device="cuda")  # where a step is one graph
    assert measured.shares() is None


def rows_of(text: str) -> list[list[str]]:
    """The cells of a Markdown table without its head."""
    _, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()
    )
    return rows


def measured() -> Comparison:
    """Batches of 10: we train 40 images/s and infer 100, in bf16 20 and 50, the peer 10 and 200."""
    first, peer = contenders("shipped")
    second = replace(first, precision="bf16")
    results = [
        result(
            first, train=[0.25] * 3, infer=[0.1] * 3, gradients=[0.2] * 3,
            input=[0.05] * 3, loop=[0.4 * LOOP_STEPS] * 3,
        ),
        result(second, train=[0.5] * 3, infer=[0.2] * 3),
        result(peer, train=[1.0, 2.0, 0.5], infer=[0.05] * 3),
    ]  # fmt: skip
    return Comparison(10, results, {}, [1e11, 2e11, 4e11], 2 * 10**9)


def test_the_table_says_how_many_times_faster_we_are_in_the_same_precision() -> None:
    first, second, peer = rows_of(report.table(measured()))
    assert first == [
        "vit_train (fused, fp32)", "40 (40–40)", "", "100 (100–100)", "", "0.50 (0.50–0.50)",
        "2.0 (2.0–2.0)", "2 MB",
    ]  # fmt: skip
    assert second[:3] == ["vit_train (fused, bf16)", "20 (20–20)", ""]
    assert peer[:5] == [
        "timm (fp32)", "10 (5–20)", "4.00 (2.00–8.00)", "200 (200–200)", "0.50 (0.50–0.50)",
    ]  # fmt: skip
    peer_alone = measured()
    del peer_alone.results[0]
    assert rows_of(report.table(peer_alone))[1][2] == ""  # none of ours is in its precision


def test_a_table_can_be_read_as_text() -> None:
    lines = report.table(measured()).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[1].startswith("| ---") and lines[1].endswith("--: |")


def test_the_notes_and_the_json_say_the_same() -> None:
    comparison = measured()
    content = report.as_json(comparison)
    assert content["batch_size"] == 10 and content["gflop_per_image"] == 2
    assert content["gemm_gflops"] == [100, 200, 400]
    first, second, peer = content["contenders"]
    assert first["ours_to_it"] == {} and (first["name"], peer["name"]) == (
        "vit_train (fused, fp32)", "timm (fp32)",
    )  # fmt: skip
    times = {"median": 4, "low": 2, "high": 8}
    assert peer["ours_to_it"] == {
        "train": times, "infer": {"median": 0.5, "low": 0.5, "high": 0.5},
    }  # fmt: skip
    assert peer["images_per_s"]["train"] == {
        "median": 10, "low": 5, "high": 20, "rounds": [10, 5, 20],
    }  # fmt: skip
    assert second["to_our_first"]["train"]["median"] == 0.5
    assert first["images_per_s"]["loop"]["median"] == pytest.approx(25)
    assert (first["peak_memory_bytes"], peer["timings_disturbed"]) == (2**21, "0 of 6")
    assert content["fastest_peer"]["train"]["name"] == "timm (fp32)"
    assert content["fastest_peer"]["train"]["ours_to_it"]["vit_train (fused, fp32)"] == times
    notes = report.notes(comparison)
    assert notes.splitlines()[0] == (
        "- vit_train (fused, bf16) ÷ vit_train (fused, fp32): training 0.50 (0.50–0.50), "
        "inference 0.50 (0.50–0.50)"
    )
    assert "whole loop 25 (25–25) images/s, 0.625 (0.625–0.625) of the bare step" in notes
    # 40 images/s of 2 GFLOP each are 80 of 200 GFLOP/s.
    assert "2.000 GFLOP an image: 80 GFLOP/s, 40% of what large" in notes
    assert "input alone: 200 images/s" in notes and "0 of 27 timings were disturbed" in notes
    assert "0 of 27 warm-ups ended before" in notes
    assert notes.splitlines()[-2] == (
        "- fastest peer in the table, training: timm (fp32); vit_train (fused, fp32) is 4.00 "
        "(2.00–8.00) times as fast, vit_train (fused, bf16) is 2.00 (1.00–4.00) times as fast"
    )


def test_what_was_disturbed_or_never_stable_is_counted() -> None:
    ours, *_ = contenders(of=())
    timings = {"train": Timing(1.0, 0.3, False), "infer": Timing(1.0, 0.05, True)}
    results = [Result(ours, [Turn(1, 1.0, 1.0, 1, timings)])]
    assert list(report.quality(results)) == [
        "1 of 2 timings were disturbed by other programs",
        "1 of 2 warm-ups ended before the speed was stable",
    ]
    timings["infer"] = Timing(1.0, None, True)
    assert next(report.quality(results)) == "the load of this machine cannot be read"


def test_the_chart_shows_medians_from_worst_to_best() -> None:
    figure = report.chart([measured()], "title")
    train, infer = figure.axes
    for axis, heights in ((train, [40, 20, 10]), (infer, [100, 50, 200])):
        assert [patch.get_height() for patch in axis.patches] == pytest.approx(heights)
    (segment,) = train.containers[-1].errorbar.lines[2][0].get_segments()
    assert segment[:, 1].tolist() == [5, 20]
    other = measured()
    del other.results[2]  # failed with the second batch size
    assert len(report.chart([measured(), other], "title").axes[0].patches) == 5
