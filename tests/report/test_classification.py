"""The measures of a classifier against scikit-learn and against counting one by one."""

import csv
import io

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn import metrics as sk

from vit_train.base.text import csv_text
from vit_train.engine.metrics import Classification, Predictions
from vit_train.evaluation.evaluate import predictions
from vit_train.figures.measures import (
    BINS,
    COLDEST,
    FIGURES,
    HOTTEST,
    accuracy_of_surest,
    calibration_error,
    class_reports,
    draw_coverage,
    fitted_temperature,
    selective_accuracy,
)
from vit_train.figures.sheet import draw_mistakes, highest

CLASSES = 7
NAMES = [f"class {number}" for number in range(CLASSES)]


def answers(kind: str, count: int = 400, seed: int = 0) -> Predictions:
    """A classifier that is often right; some classes absent; or answers with many ties."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    if kind == "absent":
        labels = rng.choice([1, 4, 5], count)
    logits = rng.normal(size=(count, CLASSES)) + 1.5 * np.eye(CLASSES)[labels]
    if kind == "absent":
        logits[:, 6] = -50.0  # nor is it ever predicted
    if kind == "tied":
        logits = logits.round()
    return Predictions(labels, logits)


kinds = pytest.mark.parametrize("kind", ["random", "absent", "tied"])


@kinds
def test_losses_and_probabilities_are_those_of_scikit_learn(kind: str) -> None:
    found = answers(kind)
    probabilities = np.exp(found.log_probabilities)
    assert found.losses.mean() == pytest.approx(
        sk.log_loss(found.labels, probabilities, labels=range(CLASSES))
    )
    np.testing.assert_allclose(probabilities.sum(1), 1)
    np.testing.assert_array_equal(found.predicted, probabilities.argmax(1))
    np.testing.assert_allclose(found.confidence, probabilities.max(1))


def test_losses_of_huge_logits_are_finite() -> None:
    found = answers("random")
    huge = Predictions(found.labels, 1e4 * found.logits)
    np.testing.assert_allclose(huge.log_probabilities, log_softmax(huge.logits, axis=1))
    assert np.isfinite(huge.losses).all()


@kinds
def test_accuracies_are_those_of_scikit_learn(kind: str) -> None:
    found = answers(kind)
    result = Classification.of(found)
    assert result.acc == sk.accuracy_score(found.labels, found.predicted)
    in_order = found.top(CLASSES)[np.arange(len(found.labels)), found.ranks]
    np.testing.assert_array_equal(in_order, found.labels)
    if kind != "tied":
        top5 = sk.top_k_accuracy_score(found.labels, found.logits, k=5, labels=range(CLASSES))
        assert result.top5 == pytest.approx(top5)


def test_answers_of_nan_are_wrong_and_equal_ones_the_first_class() -> None:
    labels = np.array([0, 1, 2])
    assert not Predictions(labels, np.full((3, 3), np.nan)).correct.any()
    assert not Predictions(labels, np.where(np.eye(3, k=1), np.nan, 0.0)).correct[:2].any()
    assert Predictions(labels, np.zeros((3, 3))).correct.tolist() == [True, False, False]


@kinds
def test_each_class_and_the_averages_are_scikit_learns(kind: str) -> None:
    found = answers(kind)
    reports, averages = class_reports(found, NAMES)
    columns = sk.precision_recall_fscore_support(
        found.labels, found.predicted, labels=range(CLASSES), zero_division=0
    )
    for field, column in zip(("precision", "recall", "f1", "support"), columns, strict=True):
        assert [each[field] for each in reports] == pytest.approx(list(column)), field
    for each, average in zip(averages, ("macro", "weighted"), strict=True):
        expected = sk.precision_recall_fscore_support(
            found.labels, found.predicted, average=average, zero_division=0
        )[:3]
        assert (each["precision"], each["recall"], each["f1"]) == pytest.approx(expected)
        assert each["support"] == len(found.labels)
    balanced = Classification.of(found).balanced_acc
    present = sk.recall_score(
        found.labels, found.predicted, labels=np.unique(found.labels), average="macro"
    )
    assert balanced == pytest.approx(present)


@kinds
def test_the_calibration_error_is_the_one_counted_by_hand(kind: str) -> None:
    found = answers(kind)
    error = 0.0
    for number in range(BINS):
        inside = [
            place
            for place, confidence in enumerate(found.confidence)
            if number / BINS < confidence <= (number + 1) / BINS
        ]
        if inside:
            gap = found.correct[inside].mean() - found.confidence[inside].mean()
            error += abs(gap) * len(inside) / len(found.labels)
    assert calibration_error(found) == pytest.approx(error)


@pytest.mark.parametrize("sureness", [0.2, 1.0, 6.0])
def test_the_temperature_is_the_best_there_is(sureness: float) -> None:
    found = answers("random", count=1000)
    found = Predictions(found.labels, sureness * found.logits)

    def loss(log_temperature: float) -> float:
        logits = found.logits / np.exp(log_temperature)
        return float(Predictions(found.labels, logits).losses.mean())

    best = np.exp(minimize_scalar(loss, bounds=(-4, 4), method="bounded").x)
    assert fitted_temperature(found) == pytest.approx(best, rel=1e-3)


def test_perfect_and_meaningless_answers_have_a_finite_temperature() -> None:
    labels = np.arange(6) % 3
    assert fitted_temperature(Predictions(labels, np.eye(3)[labels])) == pytest.approx(COLDEST)
    wrong = Predictions(labels, np.eye(3)[(labels + 1) % 3])
    assert fitted_temperature(wrong) == pytest.approx(HOTTEST)


@kinds
def test_coverage_counts_the_surest_images_whatever_their_order(kind: str) -> None:
    found = answers(kind)
    curve = accuracy_of_surest(found)
    assert curve[-1] == pytest.approx(found.correct.mean())
    order = np.random.default_rng(1).permutation(len(found.labels))
    shuffled = Predictions(found.labels[order], found.logits[order])
    np.testing.assert_allclose(accuracy_of_surest(shuffled), curve)
    if kind != "tied":
        order = np.argsort(-found.confidence)
        for count in (1, 10, 333):
            assert curve[count - 1] == pytest.approx(found.correct[order[:count]].mean())
    assert selective_accuracy(found) == pytest.approx(curve.mean())


def test_a_mark_rests_on_enough_images() -> None:
    """The first images of the highest confidence are right, all others wrong."""
    for right, marks in ((17, 0), (20, 3)):
        confidence = np.linspace(3, 1, 100)
        labels = (np.arange(100) >= right).astype(int)
        found = Predictions(labels, np.stack([confidence, np.zeros(100)], axis=1))
        (axes,) = draw_coverage(found, ["a", "b"]).axes
        assert len(axes.texts) == marks


def test_every_image_has_a_row_with_what_was_said_of_it() -> None:
    found = answers("random", count=20)
    names = np.array([f"cats/{number}.png" for number in range(20)], dtype=object)
    rows = list(csv.DictReader(io.StringIO(csv_text(predictions(found, names, NAMES)))))
    probabilities = np.exp(found.log_probabilities)
    for place, row in enumerate(rows):
        assert row["image"] == f"cats/{place}.png"
        assert row["true"] == NAMES[found.labels[place]]
        order = np.argsort(-found.logits[place])
        said = [row["predicted"], *(row[f"predicted_{number}"] for number in range(2, 6))]
        assert said == [NAMES[each] for each in order[:5]]
        assert float(row["probability"]) == pytest.approx(found.confidence[place], abs=1e-6)
        expected = probabilities[place, found.labels[place]]
        assert float(row["true_probability"]) == pytest.approx(expected, abs=1e-6)
        assert row["correct"] == str(int(row["true"] == row["predicted"]))
        assert float(row["probability_5"]) == pytest.approx(
            probabilities[place, order[4]], abs=1e-6
        )


def test_two_classes_have_two_columns() -> None:
    answers = Predictions(np.array([0]), np.array([[1.0, 2.0]]))
    table = csv_text(predictions(answers, [5], ["a", "b\n"]))
    header, row = csv.reader(io.StringIO(table))
    assert header[-2:] == ["predicted_2", "probability_2"] and row[:4] == ["5", "a", "b\\n", "0"]


def test_the_worst_and_the_most_doubtful_images_are_shown_first() -> None:
    logits = np.array([[5.0, 0, 0], [0, 9, 0], [0, 0, 1], [3, 2.9, 0], [0, 0.5, 4]])
    labels = np.array([0, 0, 0, 0, 1])
    images = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1).expand(-1, 3, 8, 8)
    (axes,) = draw_mistakes(Predictions(labels, logits), images, ["a", "b", "c"]).axes
    shown = [int(image.get_array().max()) for image in axes.images]
    assert shown[:3] == [1, 4, 2] and shown[3] == 3 and len(shown) == 3 + 5
    among = np.array([True, False, True])
    assert highest(np.array([1.0, 3.0, 2.0]), among) == [2, 0]


@pytest.mark.parametrize("classes", [2, 7])
def test_the_figures_can_be_drawn_of_any_answers(classes: int) -> None:
    labels = np.arange(5) % classes
    images = torch.zeros(5, 3, 8, 8, dtype=torch.uint8)
    names = ["$a_b$ <x>", "long " * 9, *map(str, range(classes))][:classes]
    for logits in (np.eye(classes)[labels] * 9, np.zeros((5, classes))):
        found = Predictions(labels, logits)
        for draw in FIGURES.values():
            draw(found, names).draw_without_rendering()
        draw_mistakes(found, images, names).draw_without_rendering()
