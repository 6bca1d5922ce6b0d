from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit_train.engine.metrics import Classification, Predictions
from vit_train.figures.measures import confusion_matrix, draw_confusion


def drawn_answers(count: int, classes: list[int]) -> Predictions:
    rng = np.random.default_rng(0)
    return Predictions(rng.choice(classes, count), rng.normal(size=(count, 5)))


@pytest.mark.parametrize("classes", [[0, 1, 2, 3, 4], [1, 4], [2]])
def test_the_matrix_and_the_balanced_accuracy_are_those_counted_one_by_one(
    classes: list[int],
) -> None:
    """Classes that never occur have no accuracy, and no part in the mean."""
    answers = drawn_answers(200, classes)
    matrix = confusion_matrix(answers)
    pairs = list(zip(answers.labels, answers.predicted, strict=True))
    for truth in range(5):
        for taken_for in range(5):
            assert matrix[truth, taken_for] == pairs.count((truth, taken_for))
    recalls = [np.mean([p == t for t, p in pairs if t == truth]) for truth in classes]
    assert Classification.of(answers).balanced_acc == pytest.approx(np.mean(recalls))


def test_neighboring_classes_can_be_counted_together() -> None:
    answers = drawn_answers(200, [0, 1, 2, 3, 4])
    matrix = confusion_matrix(answers)
    pairs = [[0, 1], [2, 3], [4]]
    expected = [[matrix[np.ix_(rows, columns)].sum() for columns in pairs] for rows in pairs]
    assert confusion_matrix(answers, together=2).tolist() == expected


def test_thousands_of_classes_are_drawn_in_as_many_cells_as_there_are_pixels() -> None:
    labels = np.arange(2500)
    answers = Predictions(labels, np.eye(2500, dtype=np.float32)[labels])
    (image,) = draw_confusion(answers, [str(label) for label in labels]).axes[0].images
    assert image.get_array().shape == (834, 834)
    assert image.get_extent()[1] == 834 * 3 - 0.5


@pytest.mark.parametrize("count", [2, 10, 100])
def test_the_figure_names_as_many_classes_as_can_be_read(count: int, tmp_path: Path) -> None:
    names = [f"$class_{number} <b>" for number in range(count)]
    labels = np.arange(count).repeat(3)
    figure = draw_confusion(Predictions(labels, np.eye(count)[labels]), names)
    figure.savefig(tmp_path / "figure.png")
    with Image.open(tmp_path / "figure.png") as picture:
        assert min(picture.size) > 200
    axes = figure.axes[0]
    assert len(axes.texts) == (count if count < 100 else 0)
    if count < 100:
        shown = [tick.get_text() for tick in axes.get_yticklabels()]
        assert [name.replace(r"\$", "$") for name in shown] == names


def test_a_class_without_images_is_gray_not_never_right() -> None:
    answers = Predictions(np.array([0, 0, 2]), np.eye(3)[[0, 1, 2]])
    (image,) = draw_confusion(answers, ["a", "b", "c"]).axes[0].images
    colors = image.to_rgba(image.get_array())[..., :3]
    red, green, blue = colors[1].T
    assert (red == green).all() and (green == blue).all() and (red > 0.8).all() and (red < 1).all()
    assert not np.isclose(colors[[0, 2]], colors[1]).all(axis=-1).any()
