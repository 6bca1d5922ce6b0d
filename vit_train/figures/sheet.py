"""Sheets of labeled images, and of a classifier's mistakes."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from vit_train.base.text import printable
from vit_train.engine.metrics import Answers, Integers
from vit_train.figures.charts import PALETTE, Figure, width

COLUMNS = 6
# The colors of right and of wrong predictions.
RIGHT, WRONG = PALETTE[2], PALETTE[3]
GRAY = PALETTE[5]
# In inches: an image's side, a line below it, the gap between images, a section's title.
SIDE, LINE, GAP, TITLE = 1.5, 0.17, 0.14, 0.4
# The size of a line's font, in points.
FONT = 7.5
# Of a longer name, no more characters could fit.
MOST = 99


class Labeled(NamedTuple):
    """A uint8 image (3,S,S), and the lines below it with their colors."""

    image: Tensor
    lines: Sequence[tuple[str, str]]


def draw_sheet(sections: Mapping[str, Sequence[Labeled]], columns: int = COLUMNS) -> Figure:
    """Draw the images of each section below its title, if it has one.

    All images share one Axes, whose units are inches from the upper left corner: a separate Axes
    for each image would take a second to lay out.
    """
    lines = max((len(each.lines) for part in sections.values() for each in part), default=0)
    row = SIDE + 0.08 + LINE * lines + GAP
    rows = [-(-len(part) // columns) for part in sections.values()]
    titles = [TITLE if title else GAP for title in sections]
    across = columns * (SIDE + GAP) + GAP
    height = sum(titles) + row * sum(rows) + GAP
    figure = Figure(figsize=(across, height), dpi=110)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    top = 0.0
    for (title, part), count, above in zip(sections.items(), rows, titles, strict=True):
        heading = title if part or not title else f"{title}: none"
        axes.text(
            GAP, top + above / 2, heading, fontsize=12, weight="bold", va="center", parse_math=False
        )
        for place, (image, lines_below) in enumerate(part):
            left = GAP + place % columns * (SIDE + GAP)
            upper = top + above + place // columns * row
            extent = (left, left + SIDE, upper + SIDE, upper)
            pixels = image.permute(1, 2, 0).cpu().numpy()
            axes.imshow(pixels, interpolation="nearest", extent=extent)
            for number, (words, color) in enumerate(lines_below):
                axes.text(
                    left, upper + SIDE + 0.11 + LINE * number, words, color=color, va="center",
                    fontsize=FONT, parse_math=False,
                )  # fmt: skip
        top += above + row * count
    axes.set(xlim=(0, across), ylim=(height, 0))
    return figure


def class_line(who: str, name: str, chance: float, color: str = "black") -> tuple[str, str]:
    """Return a line such as "label: cat 12 %"."""
    share = "<1" if chance < 0.005 else f"{100 * chance:.0f}"
    return fitted(f"{who}: ", name, f" {share} %"), color


def fitted(before: str, name: str, after: str = "") -> str:
    """Return a line with as much of the name's beginning as fits below an image."""
    name = printable(name)[:MOST]
    line, kept = f"{before}{name}{after}", len(name)
    while FONT * width(line) > SIDE and kept > 1:
        kept -= 1
        line = f"{before}{name[:kept].rstrip()}…{after}"
    return line


def fitted_end(path: str) -> str:
    """Return as much of a path's end as fits below an image."""
    kept = printable(path)[-MOST:]
    line = kept if len(kept) == len(printable(path)) else f"…{kept}"
    while FONT * width(line) > SIDE:
        kept = kept[1:]
        line = f"…{kept}"
    return line


def image_grid(images: Tensor, labels: Sequence[Sequence[str]], columns: int = COLUMNS) -> Figure:
    """Draw uint8 images (N,3,S,S), the lines of its label below each."""
    labeled = [
        Labeled(image, [(line, "black") for line in lines])
        for image, lines in zip(images, labels, strict=True)
    ]
    return draw_sheet({"": labeled}, columns)


def label_lines(target: Tensor, classes: Sequence[str]) -> list[str]:
    """Return the name of a label's class or, if it is mixed, each class with its share."""
    if target.ndim == 0:
        return [fitted("", classes[int(target)]) if target >= 0 else "no label"]
    shares = zip(target.tolist(), classes, strict=True)
    shown = sorted(((share, name) for share, name in shares if share >= 0.005), reverse=True)
    if shown and shown[0][0] > 0.995:
        return [fitted("", shown[0][1])]
    return [fitted("", name, f" {share:.0%}") for share, name in shown] or ["no label"]


# Images in each section.
COUNT = 12


def most_wrong(answers: Answers, count: int) -> Integers:
    """Return the wrong answers whose images have the highest loss, the highest first."""
    order: Integers = np.argsort(-answers.losses, kind="stable")
    return order[~answers.correct[order]][:count]


def most_doubtful(answers: Answers, count: int) -> Integers:
    """Return the answers whose two most probable classes are nearest to each other."""
    best = np.sort(answers.log_probabilities, axis=1)[:, ::-1]
    order: Integers = np.argsort(best[:, 0] - best[:, 1], kind="stable")
    return order[:count]


def draw_mistakes(
    answers: Answers, images: Tensor, classes: Sequence[str], names: Sequence[object] = ()
) -> Figure:
    """Draw uint8 images (N,3,S,S), each with its true and its predicted class, and with its file.

    A name that is a number leads to no file, and is left out.
    """
    sections = {
        "Most wrong: the true class got the least probability": most_wrong(answers, COUNT),
        "Least sure: two classes are almost equally probable": most_doubtful(answers, COUNT),
    }
    return draw_sheet(
        {
            title: [
                Labeled(
                    images[index],
                    answer_lines(answers, index, classes, names[index : index + 1]),
                )
                for index in chosen.tolist()
            ]
            for title, chosen in sections.items()
        }
    )


def answer_lines(
    answers: Answers, index: int, classes: Sequence[str], names: Sequence[object]
) -> list[tuple[str, str]]:
    """Return an image's true and predicted class with their probabilities, and its file's name."""
    label, predicted = int(answers.labels[index]), int(answers.predicted[index])
    chances = np.exp(answers.log_probabilities[index])
    color = RIGHT if answers.correct[index] else WRONG
    return [
        class_line("label", classes[label], chances[label]),
        class_line("model", classes[predicted], chances[predicted], color),
        *((fitted_end(name), GRAY) for name in names if isinstance(name, str)),
    ]
