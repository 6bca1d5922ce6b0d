"""Charts, drawn with matplotlib's object interface, which needs no display."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

from matplotlib import colormaps as colormaps  # for the rest of the package, as is Figure
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Figure  # for the rest of the package
from matplotlib.font_manager import FontProperties
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator

from vit_train.base.text import printable
from vit_train.base.writing import replacing


@contextmanager
def ignore_missing_glyphs() -> Iterator[None]:
    """Suppress matplotlib's warnings about characters that the font lacks; it draws boxes instead.

    Use it around drawing text that comes from outside, such as class names.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        yield


def width(text: str) -> float:
    """Return the width of a line of text, in inches for each point of the font's size."""
    return sum(map(advance, text))


@cache
def advance(sign: str) -> float:
    """Return how much a character widens a line; measured once, as a whole line takes 0.5 ms."""

    def measured(text: str) -> float:
        points, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
        return float(points)

    font = FontProperties(size=100)
    with ignore_missing_glyphs():
        return (measured(f"|{sign}|") - measured("||")) / 100 / 72


# Colors that color-blind readers can also tell apart.
PALETTE = ["#3b6ea5", "#d1750d", "#3f8f4f", "#a8324a", "#7a5ba8", "#6f6f6f", "#1fa3a3", "#b58900"]


def colors(count: int) -> list[str]:
    """Return `count` colors: from the palette or, if it has too few, a scale from dark to light."""
    if count <= len(PALETTE):
        return PALETTE[:count]
    scale = colormaps["viridis"]
    return [to_hex(scale(0.95 * number / (count - 1))) for number in range(count)]


def chart(
    width: float, height: float, grid: Literal["", "y", "both"] = "both"
) -> tuple[Figure, Axes]:
    """Return an empty chart of this size in inches, with grid lines along these axes."""
    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    if grid:
        axes.grid(axis=grid, alpha=0.3)
    return figure, axes


def save(figure: Figure, path: Path) -> None:
    """Write a figure, in the format that the file's name says."""
    with replacing(path) as file, ignore_missing_glyphs():
        figure.savefig(file, format=path.suffix[1:])


# One run's metrics.csv: one dict per epoch, keyed by column.
Curve = Sequence[dict[str, float]]
# A label, and for each number of training images the results of the runs with that number.
Series = tuple[str, Sequence[tuple[int, Sequence[float]]]]
# Characters in a line of a label.
LABEL = 48


def wrapped(label: str) -> str:
    """Return a label on one line or two."""
    return "\n".join(wrap(printable(label), LABEL, max_lines=2, placeholder=" …"))


def bars(groups: Sequence[tuple[str, Sequence[float], str]], title: str) -> Figure:
    """Draw each group's mean as a bar with its text, and each run as a point.

    A group is (label, results of its runs, text).
    """
    figure, axis = chart(7, 1.2 + 0.45 * len(groups), grid="")
    for place, (_, points, text) in enumerate(reversed(groups)):
        axis.barh(place, sum(points) / len(points), color="#3b6ea5", alpha=0.5)
        axis.plot(points, [place] * len(points), "o", color="#1d3d61", markersize=4)
        axis.annotate(text, (0, place), (4, 0), textcoords="offset points", va="center", fontsize=8)
    labels = [wrapped(label) for label, _, _ in reversed(groups)]
    axis.set_yticks(range(len(groups)), labels, fontsize=8, parse_math=False)
    axis.set_xlabel(title)
    return figure


def as_written(legend: Legend) -> None:
    """Show legend texts literally: a $ in a setting does not start a formula."""
    for text in legend.get_texts():
        text.set_parse_math(False)


def lines(series: Sequence[Series], title: str) -> Figure:
    """Draw results by number of training images: a line through the means, a point per run."""
    figure, axis = chart(6, 4)
    for (label, results), color in zip(series, colors(len(series)), strict=True):
        means = [sum(points) / len(points) for _, points in results]
        axis.plot([x for x, _ in results], means, color=color, label=wrapped(label))
        for x, points in results:
            axis.plot([x] * len(points), points, "o", color=color, markersize=4)
    axis.set_xscale("log")
    ticks = sorted({x for _, results in series for x, _ in results})
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks], fontsize=8)
    axis.minorticks_off()
    axis.set_xlabel("training images")
    axis.set_ylabel(title)
    as_written(axis.legend(fontsize=8, frameon=False))
    return figure


STYLES: dict[str, dict[str, Any]] = {
    "train": {"linestyle": "--", "linewidth": 0.9, "alpha": 0.8},
    "val": {"linestyle": "-", "linewidth": 1.4},
}


def draw_runs(
    axis: Axes, runs: Sequence[Curve], column: str, color: str, style: dict[str, Any]
) -> None:
    """Draw one column of the runs' curves, for the epochs that all of the runs have.

    With several runs this is their mean and a band from the lowest to the highest value.
    """
    if not all(column in row for rows in runs for row in rows):
        return
    scale = 100 if column.endswith("acc") else 1
    epochs = list(zip(*runs, strict=False))
    seen = [rows[0]["images_seen"] / 1000 for rows in epochs]
    values = [[scale * row[column] for row in rows] for rows in epochs]
    marker = "." if len(epochs) < 3 else None  # a single epoch makes no line
    means = [sum(epoch_values) / len(epoch_values) for epoch_values in values]
    axis.plot(seen, means, color=color, marker=marker, **style)
    if len(runs) > 1:
        low, high = list(map(min, values)), list(map(max, values))
        axis.fill_between(seen, low, high, color=color, alpha=0.15, linewidth=0)


def curves(
    groups: Sequence[tuple[str, Sequence[Curve]]], measures: Sequence[str], validation: str
) -> Figure:
    """Draw one panel per measure over the images seen: validation solid, training dashed.

    `validation` is the legend's text for the solid lines. A group of several runs is drawn as
    their mean and the band that they span. A single group needs no name.
    """
    figure = Figure(figsize=(5 * len(measures), 3.6), dpi=120, layout="constrained")
    palette = colors(len(groups))
    axes = figure.subplots(1, len(measures), squeeze=False)[0]
    for axis, measure in zip(axes, measures, strict=True):
        for (_, runs), color in zip(groups, palette, strict=True):
            for split, style in STYLES.items():
                draw_runs(axis, runs, f"{split}_{measure}", color, style)
        axis.set_xlabel("images seen, thousands")
        axis.xaxis.set_major_locator(MaxNLocator(8))
        axis.set_ylabel({"acc": "accuracy, %"}.get(measure, measure))
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    several = len(groups) > 1
    keys = [Line2D([], [], color=color) for color in palette if several]
    labels = [wrapped(label) for label, _ in groups if several]
    columns = {column for _, runs in groups for rows in runs for row in rows for column in row}
    for split, words in (("val", validation), ("train", "training")):
        if any(f"{split}_{measure}" in columns for measure in measures):
            keys.append(Line2D([], [], color="black" if several else palette[0], **STYLES[split]))
            labels.append(words)
    if not keys:  # a metrics.csv without these measures
        return figure
    # As many columns as fit at about 14 characters per inch, 6 of them for a line's sample.
    longest = max(len(line) for label in labels for line in label.split("\n"))
    fitting = int(14 * figure.get_figwidth()) // (longest + 6)
    columns_of_legend = min(5, len(keys), max(1, fitting))
    rows = -(-len(keys) // columns_of_legend) * max(label.count("\n") + 1 for label in labels)
    figure.set_figheight(3.6 + 0.18 * max(0, rows - 3))
    legend = figure.legend(
        keys, labels, loc="outside lower center",
        ncols=columns_of_legend, fontsize=8, frameon=False,
    )  # fmt: skip
    as_written(legend)
    return figure


def draw_robustness(accuracies: dict[str, list[float]], clean: float) -> Figure:
    """Draw the accuracy on corrupted images over the severity; `clean` is that at severity 0."""
    figure, axis = chart(6.2, 4)
    for (name, values), color in zip(accuracies.items(), colors(len(accuracies)), strict=True):
        line = [100 * clean, *(100 * value for value in values)]
        axis.plot(range(len(line)), line, color=color, label=name, marker=".")
    axis.set(xlabel="severity", ylabel="accuracy, %", ylim=(0, 100))
    axis.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
