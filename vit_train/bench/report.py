"""The benchmark's results as a table, a figure and JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from vit_train.bench.results import Comparison, Result, Spread
from vit_train.report.figure_file import Figure

COLORS = {
    "vit_train": "#c1272d",
    "timm": "#3b6ea5",
    "torchvision": "#d98c2b",
    "vit-pytorch": "#5b8c5a",
}
KINDS = {"train": "training", "infer": "inference"}
COLUMNS = (
    *("training, images/s", "ours to it", "inference, images/s", "ours to it"),
    *("first step, s", "start-up, s", "peak memory"),
)


def figure_of(value: Spread, digits: int = 0) -> str:
    return f"{value.median:,.{digits}f} ({value.low:,.{digits}f}–{value.high:,.{digits}f})"


def table(comparison: Comparison) -> str:
    """Return a Markdown table for one batch size: all speeds, and ours relative to each peer's.

    "Ours" is the first of our lines in the peer's precision.
    """
    rows: list[Sequence[str]] = [(f"batch {comparison.batch_size}", *COLUMNS)]
    for result in comparison.results:
        rival = None if result.contender.is_ours else comparison.rival(result)
        cells = [result.contender.name]
        for kind in KINDS:
            ratio = figure_of(rival.ratio(kind, result), 2) if rival else ""
            cells += [figure_of(result.speed(kind)), ratio]
        cells += [figure_of(result.first_step, 2), figure_of(result.start_up, 1)]
        rows.append((*cells, f"{result.peak_memory / 2**20:,.0f} MB"))
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table that is also readable as text: the first row is its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first, *others = widths
    lines = [
        [row[0].ljust(first), *(c.rjust(w) for c, w in zip(row[1:], others, strict=True))]
        for row in rows
    ]
    lines.insert(1, ["-" * first, *("-" * (width - 1) + ":" for width in others)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def notes(comparison: Comparison) -> str:
    """Describe our lines, the loop, how undisturbed the figures are, and the fastest peer."""
    first, *others = comparison.ours
    lines = [
        *(
            f"{each.contender.name} ÷ {first.contender.name}: {both(each, first)}"
            for each in others
        ),
        *(about_the_loop(first, comparison) if first.has("loop") else []),
        *quality(comparison.results),
        *(f"{name} could not be measured: {why}" for name, why in comparison.failed.items()),
        *fastest(comparison),
    ]
    return "\n".join(f"- {line}" for line in lines)


def both(one: Result, other: Result) -> str:
    return ", ".join(
        f"{name} {figure_of(one.ratio(kind, other), 2)}" for kind, name in KINDS.items()
    )


def about_the_loop(ours: Result, comparison: Comparison) -> Iterator[str]:
    yield (
        f"whole loop {figure_of(ours.speed('loop'))} images/s, "
        f"{figure_of(ours.ratio('loop', ours, 'train'), 3)} of the bare step"
    )
    if shares := ours.shares():
        parts = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
        yield f"a step of the loop: {parts}"
    yield f"input alone: {ours.speed('input').median:,.0f} images/s"
    rate = comparison.flops * ours.speed("train").median / 1e9
    work = f"{comparison.flops / 1e9:.3f} GFLOP an image: {rate:,.0f} GFLOP/s"
    if comparison.ceilings:
        ceiling = Spread.of([value / 1e9 for value in comparison.ceilings])
        work += (
            f", {rate / ceiling.median:.0%} of what large matrix products reach here "
            f"({figure_of(ceiling)})"
        )
    yield work


def quality(results: Sequence[Result]) -> Iterator[str]:
    measured, disturbed, unstable = (
        sum(getattr(result, name) for result in results)
        for name in ("measured", "disturbed", "unstable")
    )
    unknown = any(timing.others is None for result in results for timing in result.timings)
    yield (
        "the load of this machine cannot be read"
        if unknown
        else f"{disturbed} of {measured} timings were disturbed by other programs"
    )
    yield f"{unstable} of {measured} warm-ups ended before the speed was stable"


def fastest(comparison: Comparison) -> Iterator[str]:
    for kind, what in KINDS.items():
        peer = comparison.fastest_peer(kind)
        if peer is None:
            return
        ours = ", ".join(
            f"{each.contender.name} is {figure_of(each.ratio(kind, peer), 2)} times as fast"
            for each in comparison.ours
        )
        yield f"fastest peer in the table, {what}: {peer.contender.name}; {ours}"


def as_json(comparison: Comparison) -> dict[str, Any]:
    first = comparison.ours[0]
    return {
        "batch_size": comparison.batch_size,
        "gflop_per_image": comparison.flops / 1e9,
        "gemm_gflops": [value / 1e9 for value in comparison.ceilings],
        "shares_of_the_loop": first.shares(),
        "contenders": [contender_json(result, comparison) for result in comparison.results],
        "failed": comparison.failed,
        "fastest_peer": {
            kind: {
                "name": peer.contender.name,
                "ours_to_it": {
                    each.contender.name: asdict(each.ratio(kind, peer)) for each in comparison.ours
                },
            }
            for kind in KINDS
            if (peer := comparison.fastest_peer(kind)) is not None
        },
    }


def contender_json(result: Result, comparison: Comparison) -> dict[str, Any]:
    contender, first = result.contender, comparison.ours[0]
    rival = None if contender.is_ours else comparison.rival(result)
    return {
        "name": contender.name,
        "package": contender.package,
        "options": contender.options,
        "parameters": result.parameters,
        "peak_memory_bytes": result.peak_memory,
        "start_up_s": asdict(result.start_up),
        "first_step_s": asdict(result.first_step)
        | {"rounds": [turn.first_step for turn in result.turns]},
        "images_per_s": {
            name: asdict(result.speed(name)) | {"rounds": result.speeds(name)}
            for name in ("train", "infer", "loop", "input")
            if result.has(name)
        },
        "ours_to_it": {kind: asdict(rival.ratio(kind, result)) for kind in KINDS} if rival else {},
        "to_our_first": {kind: asdict(result.ratio(kind, first)) for kind in KINDS},
        "timings_disturbed": f"{result.disturbed} of {result.measured}",
        "warm_ups_unstable": f"{result.unstable} of {result.measured}",
    }


def chart(comparisons: Sequence[Comparison], title: str) -> Figure:
    """Draw bars of images/s, grouped by batch size; thin lines span the worst to the best round."""
    names = list(dict.fromkeys(r.contender.name for c in comparisons for r in c.results))
    figure = Figure(figsize=(10, max(4, 0.3 * len(names))), dpi=120, layout="constrained")
    for axis, (kind, what) in zip(figure.subplots(1, 2), KINDS.items(), strict=True):
        shades = dict.fromkeys(COLORS, 1.0)
        for place, name in enumerate(names):
            # A contender may have failed with some batch sizes.
            found = [
                (i, r)
                for i, c in enumerate(comparisons)
                for r in c.results
                if name == r.contender.name
            ]
            speeds = [result.speed(kind) for _, result in found]
            middle = [speed.median for speed in speeds]
            package = found[0][1].contender.package
            axis.bar(
                [i + 0.8 * (place - (len(names) - 1) / 2) / len(names) for i, _ in found],
                middle,
                0.74 / len(names),
                yerr=[
                    [speed.median - speed.low for speed in speeds],
                    [speed.high - speed.median for speed in speeds],
                ],
                label=name,
                color=COLORS[package],
                alpha=shades[package],
                error_kw={"linewidth": 0.8},
            )
            shades[package] *= 0.7
        ticks = [f"batch {comparison.batch_size}" for comparison in comparisons]
        axis.set_xticks(range(len(comparisons)), ticks)
        axis.set_title(f"{what}, images/s", fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=11)
    return figure
