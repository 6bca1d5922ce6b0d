"""Several runs in one picture: how they ended, what it took, and how they got there."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from vit_train.text import printable
from vit_train.viz.figures import colours, shortened

# One run's metrics.csv: a row an epoch, by column.
Curve = Sequence[dict[str, float]]
# A label, and for each number of training images what the runs with so many reached.
Series = tuple[str, Sequence[tuple[int, Sequence[float]]]]


def bars(groups: Sequence[tuple[str, Sequence[float], str]], title: str) -> Figure:
    """Each group's mean as a bar with its text, each run as a point."""
    figure = Figure(figsize=(7, 1.2 + 0.45 * len(groups)), dpi=120, layout="constrained")
    axis = figure.subplots()
    for place, (_, points, text) in enumerate(reversed(groups)):
        axis.barh(place, sum(points) / len(points), color="#3b6ea5", alpha=0.5)
        axis.plot(points, [place] * len(points), "o", color="#1d3d61", markersize=4)
        axis.annotate(text, (0, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    labels = [printable(label, keep="") for label, _, _ in reversed(groups)]
    axis.set_yticks(range(len(groups)), labels, fontsize=8, parse_math=False)
    axis.set_xlabel(title)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def as_written(legend: Legend) -> None:
    """Settings may hold a $, which begins no formula here."""
    for text in legend.get_texts():
        text.set_parse_math(False)


def lines(series: Sequence[Series], title: str) -> Figure:
    """What came of more training images: a line through the means, a point for each run."""
    figure = Figure(figsize=(6, 4), dpi=120, layout="constrained")
    axis = figure.subplots()
    for (label, places), colour in zip(series, colours(len(series)), strict=True):
        means = [sum(points) / len(points) for _, points in places]
        axis.plot([x for x, _ in places], means, color=colour, label=printable(label, keep=""))
        for x, points in places:
            axis.plot([x] * len(points), points, "o", color=colour, markersize=4)
    axis.set_xscale("log")
    ticks = sorted({x for _, places in series for x, _ in places})
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=8)
    axis.minorticks_off()
    axis.set_xlabel("training images")
    axis.set_ylabel(title)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.3)
    as_written(axis.legend(fontsize=8, frameon=False))
    return figure


STYLES: dict[str, dict[str, Any]] = {
    "train": {"linestyle": "--", "linewidth": 0.9, "alpha": 0.8},
    "val": {"linestyle": "-", "linewidth": 1.4},
}


def draw_runs(
    axis: Axes, runs: Sequence[Curve], column: str, colour: str, style: dict[str, Any]
) -> None:
    """One column of the runs' curves; epoch by epoch as far as all of them go."""
    if not all(column in row for rows in runs for row in rows):
        return
    scale = 100 if column.endswith("acc") else 1
    epochs = list(zip(*runs, strict=False))
    seen = [rows[0]["images_seen"] / 1000 for rows in epochs]
    values = [[scale * row[column] for row in rows] for rows in epochs]
    marker = "." if len(epochs) < 3 else None  # one epoch is no line
    means = [sum(each) / len(each) for each in values]
    axis.plot(seen, means, color=colour, marker=marker, **style)
    if len(runs) > 1:
        low, high = list(map(min, values)), list(map(max, values))
        axis.fill_between(seen, low, high, color=colour, alpha=0.15, linewidth=0)


def curves(
    groups: Sequence[tuple[str, Sequence[Curve]]], measures: Sequence[str], validation: str
) -> Figure:
    """A panel a measure over the images seen: `validation` drawn through, training dashed.

    Several runs of a group are their mean, within what they span.
    """
    figure = Figure(figsize=(5 * len(measures), 3.6), dpi=120, layout="constrained")
    palette = colours(len(groups))
    axes = figure.subplots(1, len(measures), squeeze=False)[0]
    for axis, measure in zip(axes, measures, strict=True):
        for (_, runs), colour in zip(groups, palette, strict=True):
            for split, style in STYLES.items():
                draw_runs(axis, runs, f"{split}_{measure}", colour, style)
        axis.set_xlabel("images seen, thousands")
        axis.xaxis.set_major_locator(MaxNLocator(8))
        axis.set_ylabel({"acc": "accuracy, %"}.get(measure, measure))
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    keys = [Line2D([], [], color=colour) for colour in palette]
    keys += [Line2D([], [], color="black", **STYLES[split]) for split in ("val", "train")]
    labels = [shortened(label, 60) for label, _ in groups]
    fitting = int(14 * figure.get_figwidth()) // (max(map(len, labels)) + 6)  # columns of letters
    legend = figure.legend(
        keys, [*labels, validation, "training"], loc="outside lower center",
        ncols=min(5, len(keys), max(1, fitting)), fontsize=8, frameon=False,
    )  # fmt: skip
    as_written(legend)
    return figure
