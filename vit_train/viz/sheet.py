"""A sheet of labelled images in sections."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure
from torch import Tensor

from vit_train.viz.figures import PALETTE, shortened

COLUMNS = 6
# The colors of right and of wrong answers.
RIGHT, WRONG = PALETTE[2], PALETTE[3]
# In inches: an image's side, a line below it, the gap between images, a section's title.
SIDE, LINE, GAP, TITLE = 1.3, 0.17, 0.14, 0.4


class Labelled(NamedTuple):
    """A uint8 image (3,S,S) and the lines below it, each with its color."""

    image: Tensor
    lines: Sequence[tuple[str, str]]


def draw_sheet(sections: Mapping[str, Sequence[Labelled]]) -> Figure:
    """Draw the images of each section, below its title; all have the same number of lines."""
    lines = max((len(each.lines) for part in sections.values() for each in part), default=0)
    row = SIDE + 0.08 + LINE * lines + GAP
    rows = [-(-len(part) // COLUMNS) for part in sections.values()]
    width = COLUMNS * (SIDE + GAP) + GAP
    height = sum(TITLE + row * count for count in rows) + GAP
    figure = Figure(figsize=(width, height), dpi=110)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    top = 0.0
    for (title, part), count in zip(sections.items(), rows, strict=True):
        heading = title if part else f"{title}: none"
        axes.text(
            GAP, top + TITLE / 2, heading, fontsize=12, weight="bold", va="center", parse_math=False
        )
        for place, (image, said) in enumerate(part):
            left = GAP + place % COLUMNS * (SIDE + GAP)
            upper = top + TITLE + place // COLUMNS * row
            extent = (left, left + SIDE, upper + SIDE, upper)
            pixels = image.permute(1, 2, 0).cpu().numpy()
            axes.imshow(pixels, interpolation="nearest", extent=extent)
            for number, (words, color) in enumerate(said):
                axes.text(
                    left, upper + SIDE + 0.11 + LINE * number, words, fontsize=8.5, color=color,
                    va="center", parse_math=False,
                )  # fmt: skip
        top += TITLE + row * count
    axes.set(xlim=(0, width), ylim=(height, 0))
    return figure


def said_line(who: str, name: str, chance: float, color: str = "black") -> tuple[str, str]:
    """Return a line such as "true: cat 12 %"."""
    return f"{who}: {shortened(name, 13)} {100 * chance:.0f} %", color
