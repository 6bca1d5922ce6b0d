"""The benchmark's results as a table, a figure and JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from matplotlib.figure import Figure

from vit_train.bench.results import Result, Spread

COLORS = {
    "vit_train": "#c1272d",
    "timm": "#3b6ea5",
    "torchvision": "#d98c2b",
    "vit-pytorch": "#5b8c5a",
}
KINDS = {"train": "training", "infer": "inference"}


def figure_of(value: Spread, digits: int = 0) -> str:
    return f"{value.median:.{digits}f} ({value.low:.{digits}f}–{value.high:.{digits}f})"


def table(results: Sequence[Result]) -> str:
    """Return a Markdown table for one batch size: all speeds, and ours relative to each."""
    ours = next(result for result in results if result.is_ours)
    lines = [
        f"| batch {ours.contender.batch_size} | parameters | training, images/s | ours to it "
        "| inference, images/s | ours to it | peak memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for result in results:
        cells = [result.contender.name, f"{result.parameters:,}"]
        for kind in KINDS:
            ratio = "" if result.is_ours else figure_of(ours.ratio(kind, result), 2)
            cells += [figure_of(result.speed(kind)), ratio]
        lines.append(f"| {' | '.join(cells)} | {result.peak_memory / 2**20:,.0f} MB |")
    return "\n".join(lines)


def notes(ours: Result, flops: int, ceilings: Sequence[float], results: Sequence[Result]) -> str:
    """Describe the loop, its parts' shares, the FLOP/s and whether the machine was quiet."""
    shares = ", ".join(f"{name} {share:.1%}" for name, share in ours.shares().items())
    ceiling = Spread.of([value / 1e9 for value in ceilings])
    rate = flops * ours.speed("train").median / 1e9
    disturbed, measured = (
        sum(getattr(result, name) for result in results) for name in ("disturbed", "measured")
    )
    unknown = any(t.others is None for r in results for ts in r.timings.values() for t in ts)
    return "\n".join(
        f"- {line}"
        for line in [
            f"whole loop {figure_of(ours.speed('loop'))} images/s, "
            f"{figure_of(ours.ratio('loop', ours, 'train'), 3)} of the bare step",
            f"a step of the loop: {shares}",
            f"input alone: {ours.speed('input').median:,.0f} images/s, on one thread of a CPU",
            f"{flops / 1e9:.3f} GFLOP an image: {rate:,.0f} GFLOP/s, {rate / ceiling.median:.0%} "
            f"of what large matrix products reach here ({figure_of(ceiling)})",
            "the load of this machine cannot be read"
            if unknown
            else f"{disturbed} of {measured} timings were disturbed by other programs",
        ]
    )


def as_json(results: Sequence[Result], flops: int, ceilings: Sequence[float]) -> dict[str, Any]:
    ours = next(result for result in results if result.is_ours)
    return {
        "batch_size": ours.contender.batch_size,
        "gflop_per_image": flops / 1e9,
        "gemm_gflops": [value / 1e9 for value in ceilings],
        "shares_of_the_loop": ours.shares(),
        "contenders": [
            {
                "name": result.contender.name,
                "parameters": result.parameters,
                "peak_memory_bytes": result.peak_memory,
                "images_per_s": {
                    name: asdict(result.speed(name)) | {"rounds": result.speeds(name)}
                    for name in ("train", "infer", "loop", "input")
                    if name in result.timings
                },
                "ours_to_it": {
                    name: asdict(ours.ratio(name, result)) for name in KINDS if not result.is_ours
                },
                "timings_disturbed": f"{result.disturbed} of {result.measured}",
            }
            for result in results
        ],
    }


def chart(by_batch: Sequence[Sequence[Result]], title: str) -> Figure:
    """Draw bars of images/s, grouped by batch size; thin lines span the worst to the best round."""
    figure = Figure(figsize=(10, 4), dpi=120, layout="constrained")
    for axis, (kind, name) in zip(figure.subplots(1, 2), KINDS.items(), strict=True):
        count = len(by_batch[0])
        for place, group in enumerate(zip(*by_batch, strict=True)):
            speeds = [result.speed(kind) for result in group]
            middle = [speed.median for speed in speeds]
            reach = [
                [speed.median - speed.low for speed in speeds],
                [speed.high - speed.median for speed in speeds],
            ]
            contender = group[0].contender
            axis.bar(
                [i + 0.8 * (place - (count - 1) / 2) / count for i in range(len(group))],
                middle,
                0.74 / count,
                yerr=reach,
                label=contender.name,
                color=COLORS[contender.package],
                alpha=1 if group[0].is_ours or not contender.keep_memory else 0.4,
                error_kw={"linewidth": 0.8},
            )
        batches = [results[0].contender.batch_size for results in by_batch]
        axis.set_xticks(range(len(batches)), [f"batch {size}" for size in batches])
        axis.set_title(f"{name}, images/s", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=11)
    return figure
