import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

import vit_train
from vit_train.base.text import shortened
from vit_train.figures.charts import colors
from vit_train.figures.maps import draw_distances, draw_maps
from vit_train.figures.sheet import SIDE, class_line, draw_sheet, fitted_end, image_grid

PACKAGE = Path(vit_train.__file__).parents[1]


def test_a_grid_shows_each_image_upright_above_its_label() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (5, 3, 6, 6), generator=generator, dtype=torch.uint8)
    labels = [f"image {number}" for number in range(5)]
    (axes,) = image_grid(images, [[label] for label in labels], columns=3).axes
    texts = [text for text in axes.texts if text.get_text()]
    assert len(axes.images) == len(texts) == 5  # two rows of three, the last place empty
    middles = []
    for picture, text, image, label in zip(axes.images, texts, images, labels, strict=True):
        assert np.array_equal(picture.get_array(), image.permute(1, 2, 0))
        left, right, bottom, top = picture.get_extent()
        assert left < right and top < bottom and right - left == pytest.approx(bottom - top)
        assert text.get_text() == label and text.get_position()[0] == pytest.approx(left)
        assert text.get_position()[1] > bottom  # y grows downwards
        middles.append((round(top, 6), round(left, 6)))
    assert middles == sorted(middles) and len({top for top, _ in middles[:3]}) == 1
    assert [left for _, left in middles[3:]] == [left for _, left in middles[:2]]
    assert axes.get_ylim()[0] > max(top for top, _ in middles) > axes.get_ylim()[1] == 0


def test_no_line_below_an_image_reaches_into_the_next() -> None:
    names = ["bird", "checker board", "aquarium_fishes", "W" * 19, "i" * 40, "a class, " * 5, "$"]
    image = torch.zeros(3, 6, 6, dtype=torch.uint8)
    path = "animals/" * 9 + "cat.jpg"
    lines = [class_line("label", name, 1.0) for name in names]
    sheet = [(image, [line]) for line in (*lines, (fitted_end(path), "black"))]
    figure = draw_sheet({"": sheet})
    canvas = FigureCanvasAgg(figure)
    texts = [text for text in figure.axes[0].texts if text.get_text()]
    for text in texts:
        width = text.get_window_extent(canvas.get_renderer()).width / figure.dpi
        assert width < SIDE + 0.07, text.get_text()  # hinting moves some characters apart
        assert "…" not in text.get_text() or width > 0.9 * SIDE
    assert texts[1].get_text() == "label: checker board 100 %"
    assert texts[-1].get_text().startswith("…") and texts[-1].get_text().endswith("/cat.jpg")


def test_a_long_title_is_shortened_and_colors_differ() -> None:
    assert shortened("a" * 22) == "a" * 22 and shortened("a" * 23) == "a" * 21 + "…"
    for count in (1, 8, 9, 30):
        assert len(set(colors(count))) == count


def test_names_in_maps_are_no_formulas() -> None:
    images, maps = torch.zeros(1, 3, 8, 8, dtype=torch.uint8), torch.ones(1, 2, 2)
    figure = draw_maps(images, maps, [["$\\frac$ <x>"]], "what raised $\\frac$")
    figure.draw_without_rendering()


def test_the_current_folders_settings_of_matplotlib_do_not_count(tmp_path: Path) -> None:
    """They may be somebody else's; those that $MATPLOTLIBRC names are the user's."""
    (tmp_path / "matplotlibrc").write_bytes(b"savefig.dpi: 5\n\xff\n")
    (tmp_path / "mine").write_text("lines.linewidth: 7\n", encoding="utf-8")
    code = (
        "import vit_train.figures.charts, matplotlib;"
        "print(*(matplotlib.rcParams[name] for name in ('savefig.dpi', 'lines.linewidth')))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PACKAGE), "MATPLOTLIBRC": str(tmp_path / "mine")},
        capture_output=True,
        text=True,
    )
    assert found.stdout == "figure 7.0\n", found.stderr


def test_distances_say_what_a_dot_is_and_what_no_preference_would_be() -> None:
    (axes,) = draw_distances([[1.0, 2.0], [3.0, 4.0]], 32, even=16.5).axes
    assert axes.get_title() == "one dot for each head"
    assert [list(line.get_ydata()) for line in axes.lines] == [[1, 2], [3, 4], [16.5, 16.5]]
    assert axes.get_xticks().tolist() == [1, 2]  # layers are counted from 1, as heads are
    assert [set(line.get_xdata()) for line in axes.lines[:2]] == [{1}, {2}]
    (text,) = axes.texts
    assert text.get_text() == "even attention" and text.xy[1] == 16.5
