"""Sheets of labeled images, and of a classifier's mistakes."""

from collections.abc import Mapping, Sequence
from functools import cache
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path
from torch import Tensor

from vit_train.base.text import printable
from vit_train.engine.metrics import Floats, Integers, Predictions
from vit_train.figures.charts import PALETTE, Figure, ignore_missing_glyphs, literal

COLUMNS = 6
# The colors of correct and of wrong predictions.
RIGHT, WRONG = PALETTE[2], PALETTE[3]
GRAY = PALETTE[5]
# Colors for a map's values: perceptually uniform, and also readable in gray.
COLORS = "magma"
# In inches: an image's side, a line below it, the gap between images, and a section's title.
SIDE, LINE, GAP, TITLE = 1.5, 0.17, 0.14, 0.4
# The size of a line's font, in points.
FONT = 7.5


# A uint8 image (3,H,W), and the lines of text below it with their colors.
Labeled = tuple[Tensor, Sequence[tuple[str, str]]]


def draw_sheet(
    sections: Mapping[str, Sequence[Labeled]],
    columns: int = COLUMNS,
    side: float = SIDE,
    legend: str = "",
) -> Figure:
    """Draw sections of labeled images, each below its title; a title may be "".

    All images have the same shape, and are `side` inches high. A `legend` adds a color scale for
    maps, with this text. All images share one Axes, whose units are inches from the upper left
    corner, because laying out an Axes for each image would take a second.
    """
    labeled = [each for part in sections.values() for each in part]
    lines = max((len(lines) for _, lines in labeled), default=0)
    image_width = side * max((image.shape[2] / image.shape[1] for image, _ in labeled), default=1.0)
    row_height = side + (0.08 + LINE * lines if lines else 0) + GAP
    sheet_width = columns * (image_width + GAP) + GAP
    figure = Figure(dpi=110)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    top = 0.0
    for title, part in sections.items():
        heading = literal(f"{title}: none" if title and not part else title)
        axes.text(GAP, top + TITLE / 2, heading, fontsize=12, weight="bold", va="center")
        top += TITLE if title else GAP
        for place, (image, lines_below) in enumerate(part):
            left = GAP + place % columns * (image_width + GAP)
            upper = top + place // columns * row_height
            extent = (left, left + image_width, upper + side, upper)
            axes.imshow(
                image.permute(1, 2, 0).cpu().numpy(), interpolation="nearest", extent=extent
            )
            for number, (words, color) in enumerate(lines_below):
                middle = upper + side + 0.11 + LINE * number
                axes.text(left, middle, literal(words), color=color, va="center", fontsize=FONT)
        top += row_height * -(-len(part) // columns)
    if legend:
        draw_scale(axes, sheet_width, top, legend)
        top += 0.75  # enough for three lines
    figure.set_size_inches(sheet_width, top)
    axes.set(xlim=(0, sheet_width), ylim=(top, 0))
    return figure


def draw_scale(axes: Axes, sheet_width: float, top: float, legend: str) -> None:
    """Draw the color scale of maps on a sheet, `top` inches from its top."""
    middle, reach = sheet_width / 2, min(1.5, sheet_width / 9)
    extent = (middle - reach, middle + reach, top + 0.17, top + 0.05)
    axes.imshow(np.arange(256)[None], cmap=COLORS, extent=extent)
    for x, y, text, ha, va in (
        (middle - reach - 0.06, 0.11, "0", "right", "center"),
        (middle + reach + 0.06, 0.11, "highest of each map", "left", "center"),
        (middle, 0.24, fill(literal(legend), int(13 * sheet_width)), "center", "top"),
    ):
        axes.text(x, top + y, text, fontsize=8, ha=ha, va=va)


def class_line(who: str, name: str, chance: float, color: str = "black") -> tuple[str, str]:
    """Return a line such as "label: cat 12 %", and its color."""
    share = "<1" if chance < 0.005 else f"{100 * chance:.0f}"
    return fitted(f"{who}: ", name, f" {share} %"), color


def fitted(before: str, name: str, after: str = "") -> str:
    """Return a line that fits below an image, with the end of the name cut off if necessary."""
    name = printable(name)[:99]  # no more of a longer name could fit
    line, kept = f"{before}{name}{after}", len(name)
    while sum(map(width, line)) > SIDE and kept > 1:
        kept -= 1
        line = f"{before}{name[:kept].rstrip()}…{after}"
    return line


@cache
def width(sign: str) -> float:
    """Return the width that a character adds to a line below an image, in inches."""
    with ignore_missing_glyphs():
        # Between bars, because a space alone has no width.
        size = FontProperties(size=100 * FONT)
        ends, whole = (
            text_to_path.get_text_width_height_descent(text, size, ismath=False)[0]
            for text in ("||", f"|{sign}|")
        )
    return float(whole - ends) / 100 / 72


def image_grid(
    images: Tensor,
    labels: Sequence[Sequence[str]],
    columns: int = COLUMNS,
    side: float = SIDE,
    title: str = "",
    legend: str = "",
) -> Figure:
    """Draw uint8 images (N,3,H,W), each above the lines of its label."""
    labeled = [
        (image, [(line, "black") for line in lines])
        for image, lines in zip(images, labels, strict=True)
    ]
    return draw_sheet({title: labeled}, columns, side, legend)


def label_lines(target: Tensor, classes: Sequence[str]) -> list[str]:
    """Return a label's class as a line; for a mixed label (K,), a line for each class's share."""
    if target.ndim == 0:
        return [fitted("", classes[int(target)]) if target >= 0 else "no label"]
    shares = zip(target.tolist(), classes, strict=True)
    shown = sorted(((share, name) for share, name in shares if share >= 0.005), reverse=True)
    parts = ((name, f" {share:.0%}" if share <= 0.995 else "") for share, name in shown)
    return [fitted("", *part) for part in parts] or ["no label"]


def captioned(
    image: Tensor, classes: Sequence[str], label: int, answer: int, chances: Floats, name: object
) -> Labeled:
    """Return an image above its label, a model's answer and, if it has one, the name of its file.

    `chances` (K,) are the model's probabilities of all classes.
    """
    lines = [
        class_line("label", classes[label], chances[label]),
        class_line("model", classes[answer], chances[answer], RIGHT if answer == label else WRONG),
    ]
    if isinstance(name, str):
        lines.append(name_line(name))
    return image, lines


def name_line(name: str) -> tuple[str, str]:
    """Return the name of an image's file as a line, with the start of a long path cut off."""
    return fitted("", name[::-1])[::-1], GRAY


# The number of images in each section.
COUNT = 12


def highest(values: Floats, among: np.ndarray, count: int = COUNT) -> list[int]:
    """Return the indices of the `count` highest values (N,), highest first.

    Ignore values where `among` (N,) is False.
    """
    order: Integers = np.argsort(-values, kind="stable")
    return list(map(int, order[among[order]][:count]))


def draw_mistakes(
    predictions: Predictions, images: Tensor, classes: Sequence[str], names: Sequence[object] = ()
) -> Figure:
    """Draw the most wrong and the least sure predictions for uint8 images (N,3,H,W).

    Below each image are its true class, its predicted class and, if the image has one, the name of
    its file.
    """
    best = np.sort(predictions.log_probabilities, axis=1)
    sections = {
        "Most wrong: the true class has the lowest probability": highest(
            predictions.losses, ~predictions.correct
        ),
        "Least sure: two classes are almost equally probable": highest(
            best[:, -2] - best[:, -1], np.ones(len(best), dtype=bool)
        ),
    }

    def labeled(index: int) -> Labeled:
        label, predicted = int(predictions.labels[index]), int(predictions.predicted[index])
        chances = np.exp(predictions.log_probabilities[index])
        name = names[index] if len(names) else None
        return captioned(images[index], classes, label, predicted, chances, name)

    return draw_sheet({title: list(map(labeled, chosen)) for title, chosen in sections.items()})
