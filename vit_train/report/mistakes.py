"""A sheet of the images that a classifier gets most wrong, and of those it doubts most."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from vit_train.engine.answers import Answers, Integers
from vit_train.viz.figures import PALETTE, shortened

COLUMNS, ROWS = 6, 2
# In inches: an image's side, the two lines below it, the gap between images, a section's title.
SIDE, TEXT, GAP, TITLE = 1.3, 0.42, 0.14, 0.4


def most_wrong(answers: Answers, count: int) -> Integers:
    """Return the wrong answers whose images have the highest loss, the highest first."""
    order: Integers = np.argsort(-answers.losses, kind="stable")
    return order[~answers.correct[order]][:count]


def most_doubtful(answers: Answers, count: int) -> Integers:
    """Return the answers whose two most probable classes are nearest to each other."""
    best = np.sort(answers.log_probabilities, axis=1)[:, ::-1]
    order: Integers = np.argsort(best[:, 0] - best[:, 1], kind="stable")
    return order[:count]


def draw_mistakes(answers: Answers, images: Tensor, classes: Sequence[str]) -> Figure:
    """Draw uint8 images (N,3,S,S), each with its true and its predicted class."""
    count = COLUMNS * ROWS
    sections = {
        "Most wrong: the true class got the least probability": most_wrong(answers, count),
        "Most doubtful: two classes are almost equally probable": most_doubtful(answers, count),
    }
    rows = [-(-len(chosen) // COLUMNS) for chosen in sections.values()]
    width = COLUMNS * (SIDE + GAP) + GAP
    height = sum(TITLE + row * (SIDE + TEXT + GAP) for row in rows) + GAP
    figure = Figure(figsize=(width, height), dpi=110)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    top = 0.0
    for (title, chosen), row in zip(sections.items(), rows, strict=True):
        text = title if len(chosen) else f"{title}: none"
        axes.text(GAP, top + TITLE / 2, text, fontsize=12, weight="bold", va="center")
        for place, index in enumerate(chosen.tolist()):
            line, column = divmod(place, COLUMNS)
            left = GAP + column * (SIDE + GAP)
            draw_answer(
                axes, answers, index, images[index], classes,
                left, top + TITLE + line * (SIDE + TEXT + GAP),
            )  # fmt: skip
        top += TITLE + row * (SIDE + TEXT + GAP)
    axes.set(xlim=(0, width), ylim=(height, 0))
    return figure


def draw_answer(
    axes: Axes,
    answers: Answers,
    index: int,
    image: Tensor,
    classes: Sequence[str],
    left: float,
    top: float,
) -> None:
    """Draw one image and, below it, its classes and their probabilities."""
    pixels = image.permute(1, 2, 0).cpu().numpy()
    extent = (left, left + SIDE, top + SIDE, top)
    axes.imshow(pixels, interpolation="nearest", extent=extent)
    label, predicted = int(answers.labels[index]), int(answers.predicted[index])
    chances = np.exp(answers.log_probabilities[index])
    right = bool(answers.correct[index])
    lines = [
        (f"true: {shortened(classes[label], 13)} {100 * chances[label]:.0f} %", "black"),
        (
            f"said: {shortened(classes[predicted], 13)} {100 * chances[predicted]:.0f} %",
            PALETTE[2] if right else PALETTE[3],
        ),
    ]
    for number, (text, color) in enumerate(lines):
        axes.text(
            left, top + SIDE + 0.11 + 0.17 * number, text, fontsize=8.5, color=color, va="center",
            parse_math=False,
        )  # fmt: skip
