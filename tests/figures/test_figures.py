"""What is drawn stands where its number says: charts and sheets."""

import os
import re
import subprocess
import sys
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from torch import Tensor, nn

import vit_train
from vit_train.base.text import shortened
from vit_train.data.batches import Normalize
from vit_train.data.dataset import Statistics
from vit_train.figures.charts import (
    LABEL,
    PALETTE,
    STYLES,
    colormaps,
    colors,
    curves,
    draw_robustness,
)
from vit_train.figures.images import (
    HEAT,
    SIDE,
    class_line,
    cut_to_fit,
    draw_distances,
    draw_filters,
    draw_gallery,
    draw_maps,
    draw_sheet,
    image_grid,
)

PACKAGE = Path(vit_train.__file__).parents[1]


def test_a_grid_shows_each_image_upright_above_its_label() -> None:
    images = torch.randint(256, (5, 3, 6, 6), dtype=torch.uint8)
    labels, places = [f"image {number}" for number in range(5)], []
    (axes,) = image_grid(images, [[label] for label in labels], columns=3).axes
    texts = [text for text in axes.texts if text.get_text()]
    for picture, text, image, label in zip(axes.images, texts, images, labels, strict=True):
        assert np.array_equal(picture.get_array(), image.permute(1, 2, 0))
        left, right, bottom, top = picture.get_extent()
        assert left < right and top < bottom and right - left == pytest.approx(bottom - top)
        assert text.get_text() == label and text.get_position()[0] == pytest.approx(left)
        assert text.get_position()[1] > bottom  # y grows downwards
        places.append((round(top, 6), round(left, 6)))
    rows, columns = (sorted({place[axis] for place in places}) for axis in range(2))
    assert places == list(product(rows, columns))[:5]  # two rows of three, the last place empty
    assert axes.get_ylim()[0] > max(rows) > axes.get_ylim()[1] == 0


def test_no_line_below_an_image_reaches_into_the_next() -> None:
    names = ["bird", "checker board", "aquarium_fishes", "W" * 19, "i" * 40, "a class, " * 5, "$"]
    lines = [(class_line("label", name, 1.0), "black") for name in names]
    lines.append((cut_to_fit("", ("animals/" * 9 + "cat.jpg")[::-1])[::-1], "black"))
    image = torch.zeros(3, 6, 6, dtype=torch.uint8)
    figure = draw_sheet({"": [(image, [line]) for line in lines]})
    renderer = FigureCanvasAgg(figure).get_renderer()
    texts = [text for text in figure.axes[0].texts if text.get_text()]
    for text in texts:
        width = text.get_window_extent(renderer).width / figure.dpi
        assert width < SIDE + 0.07, text.get_text()  # hinting moves some characters apart
        assert "…" not in text.get_text() or width > 0.9 * SIDE
    assert texts[1].get_text() == "label: checker board 100 %"
    assert re.fullmatch("….+/cat.jpg", texts[-1].get_text())


@pytest.mark.parametrize("count, columns, shape", [(1, 3, (6, 6)), (7, 3, (6, 9)), (12, 4, (9, 6))])
def test_the_images_of_a_sheet_are_inside_and_apart(
    count: int, columns: int, shape: tuple[int, int]
) -> None:
    image = torch.zeros(3, *shape, dtype=torch.uint8)
    part = [(image, [("a line", "black"), ("another", "black")])] * count
    figure = draw_sheet({"first": part, "second": part[:1]}, columns, legend="a scale")
    (axes,) = figure.axes
    boxes = [each.get_extent() for each in axes.images]  # left, right, bottom, top, from above
    assert len(boxes) == count + 2  # with the scale
    assert axes.get_position().bounds == pytest.approx((0, 0, 1, 1))  # the whole figure
    for left, right, bottom, top in boxes:
        assert 0 < left < right < axes.get_xlim()[1] and 0 < top < bottom < axes.get_ylim()[0]
    for (a, b, c, d), (e, f, g, h) in combinations(boxes, 2):
        assert b < e or f < a or c < h or g < d, "two images overlap"
    across, high = figure.get_size_inches()
    assert (across, high) == (axes.get_xlim()[1], axes.get_ylim()[0])
    for left, right, bottom, top in boxes[:-1]:  # as wide as their shape says
        assert (right - left) / (bottom - top) == pytest.approx(shape[1] / shape[0])


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
    env = {**os.environ, "PYTHONPATH": str(PACKAGE), "MATPLOTLIBRC": str(tmp_path / "mine")}
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert found.stdout == "figure 7.0\n", found.stderr


def test_distances_are_dots_by_layer_with_a_line_for_uniform_attention() -> None:
    (axes,) = draw_distances([[1.0, 2.0], [3.0, 4.0]], 32, even=16.5).axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[1, 2], [3, 4], [16.5, 16.5]]
    assert axes.get_xticks().tolist() == [1, 2]  # layers are counted from 1, as heads are
    assert [set(line.get_xdata()) for line in axes.lines[:2]] == [{1}, {2}]


def row(images: float, **values: float) -> dict[str, float]:
    return {"images_seen": images, **values}


def test_a_curve_is_the_mean_of_its_runs_over_the_images_seen() -> None:
    one = [
        [row(1000, train_acc=0.1, val_acc=0.2, train_loss=3, val_loss=4),
         row(2000, train_acc=0.3, val_acc=0.4, train_loss=1, val_loss=2),
         row(3000, train_acc=0.9, val_acc=0.9, train_loss=0, val_loss=0)],
        [row(1000, train_acc=0.3, val_acc=0.6, train_loss=5, val_loss=8),
         row(2000, train_acc=0.5, val_acc=0.8, train_loss=3, val_loss=4)],
    ]  # fmt: skip
    two = [[row(1500, train_acc=0.5, train_loss=0.5)]]  # without validation
    figure = curves([("one", one), ("two", two)], ("loss", "acc"), "validation")
    loss, acc = figure.axes
    assert (loss.get_ylabel(), acc.get_ylabel()) == ("loss", "accuracy, %")
    # As far as all of a group's runs go; accuracy in per cent.
    for axis, drawn in (
        (loss, [([1000, 2000], [6, 3]), ([1000, 2000], [4, 2]), ([1500], [0.5])]),
        (acc, [([1000, 2000], [40, 60]), ([1000, 2000], [20, 40]), ([1500], [50])]),
    ):
        for line, points in zip(axis.lines, drawn, strict=True):
            np.testing.assert_allclose(line.get_data(), points)
        looks = [(to_hex(line.get_color()), line.get_linestyle()) for line in axis.lines]
        train, val = (STYLES[split]["linestyle"] for split in ("train", "val"))
        assert looks == [(PALETTE[0], val), (PALETTE[0], train), (PALETTE[1], train)]
    (band,) = acc.collections  # of validation
    span = band.get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose((span.min(), span.max()), (20, 80))
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["one", "two"]
    assert [to_hex(line.get_color()) for line in legend.get_lines()] == PALETTE[:2]


def test_accuracies_and_map_are_drawn_in_percent() -> None:
    run = [row(1000, train_map=0.25), row(2000, train_map=0.5)]
    (axis,) = curves([("one", [run])], ("map",), "validation").axes
    assert list(axis.lines[0].get_ydata()) == [25, 50] and axis.get_ylabel() == "mAP, %"


def test_long_labels_continue_on_a_second_line() -> None:
    settings = "patch_size=8, depth=2, class_weights=null, root=pics, positions="
    names = [settings + end for end in ("learned", "rotary_2d")]
    rows = [row(1000, train_loss=3), row(2000, train_loss=1)]
    (legend,) = curves([(name, [rows]) for name in names], ("loss",), "validation").legends
    shown = [text.get_text() for text in legend.get_texts()]
    assert [each.replace("\n", " ") for each in shown] == names
    assert max(len(line) for each in shown for line in each.split("\n")) <= LABEL
    # A single group needs no name.
    rows = [row(1000, train_loss=3, val_loss=4), row(2000, train_loss=1, val_loss=2)]
    for measure, count in (("acc", 0), ("loss", 2)):  # it has no accuracy
        figure = curves([("one", [rows])], (measure,), "validation")
        (legend,) = figure.legends
        assert not legend.get_texts() and len(figure.axes[0].lines) == count


def test_robustness_is_drawn_in_percent_from_clean_images_on() -> None:
    (axes,) = draw_robustness({"darkness": [0.5, 0.25], "noise": [0.4, 0.1]}, clean=0.8).axes
    drawn = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
    assert drawn == {"darkness": [80, 50, 25], "noise": [80, 40, 10]}


NORMALIZE = Normalize(Statistics((0.5,) * 3, (0.5,) * 3), torch.device("cpu"))


class Doubling:
    """Shows the image and what the model makes of it."""

    columns, legend = ("image", "made"), ""

    def pictures(self, model: nn.Module, images: Tensor, targets: Tensor) -> list[Tensor]:
        assert not torch.is_grad_enabled() and len(images) == len(targets)
        return [images, model(images)]


class Looking:
    """Shows the image and a map over it, which is highest in the last of 4 × 4 patches."""

    columns, legend = ("image", "where"), "what it looks at"

    def pictures(self, model: nn.Module, images: Tensor, targets: Tensor) -> list[Tensor]:
        maps = torch.zeros(len(images), 4, 4)
        maps[:, 3, 3] = torch.arange(len(images)) + 0.1  # each map has its own highest value
        return [images, maps]


def batch_of(levels: Tensor) -> tuple[Tensor, Tensor]:
    """Images of one gray each."""
    pixels = levels.view(-1, 1, 1, 1).expand(-1, 3, 96, 96) / 255
    return (pixels - 0.5) / 0.5, torch.arange(len(levels))


def test_images_are_shown_as_the_model_sees_them_in_evaluation() -> None:
    batch = batch_of(torch.arange(12.0))
    (axes,) = draw_gallery(Doubling(), nn.Dropout(0.5).eval(), batch, NORMALIZE).axes
    assert len(axes.images) == 12 and "image, made" in axes.texts[0].get_text()
    for level, shown in enumerate(axes.images):
        pixels = shown.get_array()
        assert (pixels[:, :96] == level).all() and (pixels[:, -96:] == level).all()


def test_a_map_lies_over_its_image_in_the_colors_of_the_scale_below() -> None:
    batch = batch_of(20 * torch.arange(12.0))
    (axes,) = draw_gallery(Looking(), nn.Identity(), batch, NORMALIZE).axes
    lowest, highest = 255 * colormaps[HEAT]((0, 255))[:, :3]
    pixels = axes.images[1].get_array()[:, -96:]  # of the second image
    assert np.abs(pixels[5, 5] - (0.3 * lowest + 0.7 * 20)).max() < 1
    assert np.abs(pixels[90, 90] - (0.8 * highest + 0.2 * 20)).max() < 1
    scale = axes.images[-1]
    assert scale.get_cmap().name == HEAT and scale.get_array().shape == (1, 256)


def test_filters_are_scaled_around_gray_with_their_shares_below() -> None:
    filters = torch.tensor([-2.0, 0, 1]).view(1, 3, 1, 1).expand(2, 3, 4, 4)
    (axes,) = draw_filters(filters, [0.7, 0.0625]).axes
    assert axes.images[0].get_array()[0, 0].tolist() == [0, 128, 191]
    words = [text.get_text() for text in axes.texts]
    assert "shares of variance" in words[0] and words[1:] == ["70.0 %", "6.2 %"]
