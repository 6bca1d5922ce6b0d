"""What is drawn stands where its number says, in its own group's color."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from vit_train.figures.charts import LABEL, PALETTE, STYLES, bars, curves, lines


def row(images: float, **values: float) -> dict[str, float]:
    return {"images_seen": images, **values}


def test_a_bar_is_as_long_as_the_mean_and_each_run_a_point() -> None:
    groups = [("one", [1.0, 4.0, 7.0], "4 ± 3"), ("two", [2.0], "2")]
    (axis,) = bars(groups, "accuracy").axes
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names == ["one", "two"] and axis.yaxis_inverted()  # drawn from above
    assert [patch.get_width() for patch in axis.patches] == [4, 2]
    assert [list(line.get_xdata()) for line in axis.lines] == [[1, 4, 7], [2]]
    assert [text.get_text() for text in axis.texts] == ["4 ± 3", "2"]
    assert axis.get_xlabel() == "accuracy"


def test_a_line_goes_through_the_means() -> None:
    series = [("one", [(100, [1.0, 3.0]), (1000, [5.0])]), ("two", [(10, [7.0])])]
    (axis,) = lines(series, "accuracy").axes
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in axis.lines]
    assert drawn == [
        ([100, 1000], [2, 5]), ([100, 100], [1, 3]), ([1000], [5]), ([10], [7]), ([10], [7]),
    ]  # fmt: skip
    assert [line.get_color() for line in axis.lines] == [*PALETTE[:1] * 3, *PALETTE[1:2] * 2]
    assert list(axis.get_xticks()) == [10, 100, 1000] and axis.get_xscale() == "log"


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
    # As far as all of a group's runs go, in thousands of images; accuracy in per cent.
    expected = {
        loss: [([1, 2], [6, 3]), ([1, 2], [4, 2]), ([1.5], [0.5])],
        acc: [([1, 2], [40, 60]), ([1, 2], [20, 40]), ([1.5], [50])],
    }
    for axis, drawn in expected.items():
        for line, (x, y) in zip(axis.lines, drawn, strict=True):
            np.testing.assert_allclose(line.get_xdata(), x)
            np.testing.assert_allclose(line.get_ydata(), y)
        styles = [line.get_linestyle() for line in axis.lines]
        assert styles == [STYLES[split]["linestyle"] for split in ("val", "train", "train")]
        colors = [to_hex(line.get_color()) for line in axis.lines]
        assert colors == [PALETTE[0], PALETTE[0], PALETTE[1]]
    spans = [each.get_paths()[0].vertices[:, 1] for each in acc.collections]
    assert [(span.min(), span.max()) for span in spans] == [
        pytest.approx((20, 80)), pytest.approx((10, 50)), pytest.approx((50, 50)),
    ]  # fmt: skip
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["one", "two"]
    assert [to_hex(line.get_color()) for line in legend.get_lines()] == PALETTE[:2]


def test_a_single_group_needs_no_name() -> None:
    rows = [row(1000, train_loss=3, val_loss=4), row(2000, train_loss=1, val_loss=2)]
    for measure, count in (("acc", 0), ("loss", 2)):  # it has no accuracy
        figure = curves([("one", [rows])], (measure,), "validation")
        (legend,) = figure.legends
        assert not legend.get_texts() and len(figure.axes[0].lines) == count
        assert legend.get_title().get_text() == "solid: validation, dashed: training"


def test_what_tells_long_labels_apart_is_shown_on_a_second_line() -> None:
    settings = "patch_size=8, depth=2, class_weights=null, root=pics, positions="
    names = [settings + end for end in ("learned", "rotary_2d")]
    rows = [row(1000, train_loss=3), row(2000, train_loss=1)]
    (axis,) = bars([(name, [1.0], "") for name in names], "accuracy").axes
    (legend,) = curves([(name, [rows]) for name in names], ("loss",), "validation").legends
    (means,) = lines([(name, [(10, [1.0])]) for name in names], "accuracy").axes
    for texts in (axis.get_yticklabels(), legend.get_texts(), means.legend_.get_texts()):
        shown = [text.get_text() for text in texts]
        assert [" ".join(each.split("\n")) for each in shown] == names
        assert all(len(line) <= LABEL for each in shown for line in each.split("\n"))
