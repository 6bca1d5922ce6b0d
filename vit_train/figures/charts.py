"""Charts, drawn with matplotlib's object interface, which needs no display."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib import colormaps as colormaps  # for the rest of the package, as is Figure
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure as Figure  # for the rest of the package
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from vit_train.base.text import printable
from vit_train.base.writing import replacing

# Colors that color-blind readers can also tell apart.
PALETTE = ["#3b6ea5", "#d1750d", "#3f8f4f", "#a8324a", "#7a5ba8", "#6f6f6f", "#1fa3a3", "#b58900"]


@contextmanager
def ignore_missing_glyphs() -> Iterator[None]:
    """Suppress matplotlib's warnings about characters that the font lacks and shows as boxes.

    Use this for drawing text from outside the program, such as class names.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        yield


def save(figure: Figure, path: Path) -> bytes:
    """Write a figure in the format that the file's suffix names; return the file's content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file, ignore_missing_glyphs():
        figure.savefig(file, format=path.suffix[1:])
    return path.read_bytes()


def literal(text: str) -> str:
    """Escape each $, so that matplotlib shows the text literally, not as a formula."""
    return text.replace("$", r"\$")


def colors(count: int) -> list[str]:
    """Return `count` colors: from the palette or, if it has too few, from a dark-to-light scale."""
    if count <= len(PALETTE):
        return PALETTE[:count]
    return [to_hex(color) for color in colormaps["viridis"](np.linspace(0, 0.95, count))]


def chart(width: float, height: float) -> tuple[Figure, Axes]:
    """Return an empty chart of the given size in inches, with grid lines."""
    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    axes = figure.subplots()
    make_plain(axes)
    return figure, axes


def make_plain(axes: Axes) -> None:
    """Draw light grid lines behind the data, and remove the frame at the top and right."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.set_axisbelow(True)


# One run's metrics.csv: one dict per epoch, keyed by column.
Curve = Sequence[dict[str, float]]
# The number of characters in a line of a label.
LABEL = 48


def wrapped(label: str) -> str:
    """Return a label as at most two lines; cut off the rest."""
    return literal("\n".join(wrap(printable(label), LABEL, max_lines=2, placeholder=" …")))


STYLES: dict[str, dict[str, Any]] = {
    "val": {"linestyle": "-", "linewidth": 1.4},
    "train": {"linestyle": "--", "linewidth": 0.9, "alpha": 0.8},
}


def draw_runs(
    axes: Axes, runs: Sequence[Curve], column: str, color: str, style: dict[str, Any]
) -> None:
    """Plot one column of the runs' metrics.csv, up to the last epoch that all runs have.

    For several runs, draw the mean and, for validation, a band from the lowest to the highest
    value. If a run lacks the column, draw nothing.
    """
    if not all(column in row for rows in runs for row in rows):
        return
    epochs = min(map(len, runs))
    seen = [row["images_seen"] for row in runs[0][:epochs]]
    scale = 100 if column.endswith(("acc", "map")) else 1
    values = scale * np.array([[row[column] for row in rows[:epochs]] for rows in runs])  # (R,E)
    marker = "." if epochs < 3 else None  # a single epoch gives no line
    axes.plot(seen, values.mean(0), color=color, marker=marker, **style)
    if column.startswith("val"):  # a second band would overlap with this one
        axes.fill_between(seen, values.min(0), values.max(0), color=color, alpha=0.15, linewidth=0)


def curves(
    groups: Sequence[tuple[str, Sequence[Curve]]], measures: Sequence[str], validation: str
) -> Figure:
    """Plot the curves of groups of runs against the images seen, with one panel per measure.

    Validation lines are solid, training lines dashed; `validation` is the legend's text for the
    solid lines. For a group of several runs, draw the mean and, for validation, a band from the
    lowest to the highest value. If there are several groups, the legend names them.
    """
    palette = colors(len(groups))
    columns = len(measures)
    size = (5 * columns, 3.5 + 0.17 * len(groups) / columns)
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    for axes, measure in zip(figure.subplots(1, columns, squeeze=False)[0], measures, strict=True):
        for (_, runs), color in zip(groups, palette, strict=True):
            for split, style in STYLES.items():
                draw_runs(axes, runs, f"{split}_{measure}", color, style)
        label = {"acc": "accuracy, %", "map": "mAP, %"}.get(measure, measure)
        axes.set(xlabel="images seen", ylabel=label)
        axes.xaxis.set_major_locator(MaxNLocator(8))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 500, 20k, 5M
        make_plain(axes)
    named = groups if len(groups) > 1 else []
    band = "; bands: lowest to highest" if any(len(runs) > 1 for _, runs in groups) else ""
    lines = [
        Line2D([], [], color=color, label=wrapped(label))
        for (label, _), color in zip(named, palette, strict=False)
    ]
    figure.legend(
        handles=lines,
        title=f"solid: {validation}, dashed: training{band}",
        loc="outside lower center", ncols=columns, fontsize=8, title_fontsize=8, frameon=False,
    )  # fmt: skip
    return figure


def draw_robustness(accuracies: dict[str, list[float]], clean: float) -> Figure:
    """Plot accuracy against severity for each corruption; `clean` is the accuracy at severity 0."""
    figure, axes = chart(6.2, 4)
    for (name, values), color in zip(accuracies.items(), colors(len(accuracies)), strict=True):
        axes.plot(100 * np.array([clean, *values]), color=color, label=name, marker=".")
    axes.set(xlabel="severity", ylabel="accuracy, %", ylim=(0, 100))
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
