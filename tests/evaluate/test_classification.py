"""The measures of a classifier against scikit-learn and against counting one by one."""

import csv
import io
from functools import partial

import numpy as np
import pytest
import torch
from matplotlib.text import Text
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax
from sklearn import metrics as sk

from vit_train.base.text import csv_text
from vit_train.data.dataset import ImageSet
from vit_train.evaluate.measuring import (
    HOTTEST,
    auroc,
    choose_threshold,
    kept_and_correct,
    temperature,
)
from vit_train.evaluate.predict import class_rows
from vit_train.figures.images import WRONG, draw_mistakes, highest
from vit_train.figures.measures import (
    CONFIDENCE_BINS,
    FIGURES,
    NUMBERS,
    accuracy_of_surest,
    binned,
    calibration_error,
    class_reports,
    confusion_matrix,
    draw_calibration,
    draw_confusion,
    draw_coverage,
)
from vit_train.loop.metrics import Classification, Predictions

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


def test_nan_logits_are_wrong_and_equal_logits_mean_the_first_class() -> None:
    labels = np.array([0, 1, 2])
    assert not Predictions(labels, np.full((3, 3), np.nan)).correct.any()
    assert not Predictions(labels, np.where(np.eye(3, k=1), np.nan, 0.0)).correct[:2].any()
    assert Predictions(labels, np.zeros((3, 3))).correct.tolist() == [True, False, False]
    for logit, top5 in ((0.0, 0.5), (np.nan, 0)):
        found = Predictions(np.arange(10), np.full((10, 10), logit))
        assert Classification.of(found).top5 == top5


@kinds
def test_each_class_and_the_averages_are_scikit_learns(kind: str) -> None:
    found = answers(kind)
    fields = ("precision", "recall", "f1", "support")
    reports, averages = class_reports(found, NAMES)
    scores = partial(sk.precision_recall_fscore_support, found.labels, found.predicted)
    columns = scores(labels=range(CLASSES), zero_division=0)
    for field, column in zip(fields, columns, strict=True):
        assert [each[field] for each in reports] == pytest.approx(list(column)), field
    (average,) = averages
    expected = scores(average="macro", zero_division=0)[:3]
    assert [average[field] for field in fields[:3]] == pytest.approx(expected)
    assert average["support"] == len(found.labels)
    _, present, _, _ = scores(labels=np.unique(found.labels), average="macro", zero_division=0)
    assert Classification.of(found).balanced_acc == pytest.approx(present)


def test_an_image_is_in_the_bin_that_holds_its_confidence() -> None:
    """And the calibration error weights the bins by their images."""
    rng = np.random.default_rng(0)
    sureness = np.linspace(0.1, 20, 600)[:, np.newaxis]  # so that no bin is empty
    found = Predictions(rng.integers(0, 30, 600), sureness * rng.normal(size=(600, 30)))
    (images, confidences, accuracies), error = binned(found), 0.0
    for number in range(CONFIDENCE_BINS):
        inside = (number / CONFIDENCE_BINS < found.confidence) & (
            found.confidence <= (number + 1) / CONFIDENCE_BINS
        )
        accuracy, confidence = found.correct[inside].mean(), found.confidence[inside].mean()
        assert images[number] == inside.sum() > 0
        assert confidences[number] == pytest.approx(confidence)
        assert accuracies[number] == pytest.approx(accuracy)
        error += abs(accuracy - confidence) * inside.sum() / 600
    assert calibration_error(found) == pytest.approx(error)
    # A confidence on the edge of two bins belongs to the lower one, and 1 to the last.
    edges = Predictions(np.zeros(2, dtype=int), np.log([[0.6, 0.4], [1, 1e-99]]))
    assert binned(edges)[0].nonzero()[0].tolist() == [8, CONFIDENCE_BINS - 1]


@pytest.mark.parametrize("sureness", [0.002, 0.2, 1.0, 6.0, 600.0])
def test_the_temperature_is_the_best_there_is(sureness: float) -> None:
    found = answers("random", count=1000)
    found = Predictions(found.labels, sureness * found.logits)
    cooled = lambda power: Predictions(found.labels, found.logits / np.exp(power))  # noqa: E731
    loss = lambda power: cooled(power).losses.mean()  # noqa: E731
    best = np.exp(minimize_scalar(loss, bounds=(-9, 9), method="bounded").x)
    assert temperature(found) == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize("wrong, fitted", [(0, None), (1, pytest.approx(HOTTEST * 2 / 3))])
def test_perfect_predictions_have_no_temperature_and_meaningless_ones_a_finite_one(
    wrong: int, fitted: object
) -> None:
    labels = np.arange(6) % 3
    assert temperature(Predictions(labels, np.eye(3)[(labels + wrong) % 3])) == fitted


@kinds
def test_coverage_counts_the_surest_images_whatever_their_order(kind: str) -> None:
    found, rng = answers(kind), np.random.default_rng(1)
    curve, order = accuracy_of_surest(found), rng.permutation(len(found.labels))
    assert curve[-1] == pytest.approx(found.correct.mean())
    shuffled = Predictions(found.labels[order], found.logits[order])
    np.testing.assert_allclose(accuracy_of_surest(shuffled), curve)
    surest = found.correct[np.argsort(-found.confidence)]
    for count in (1, 10, 333) if kind != "tied" else ():
        assert curve[count - 1] == pytest.approx(surest[:count].mean())
    assert NUMBERS["selective_acc"](found) == pytest.approx(curve.mean())


@pytest.mark.parametrize("right, marks", [(17, 0), (20, 3), (97, 1)])
def test_a_mark_rests_on_enough_images(right: int, marks: int) -> None:
    """The first images of the highest confidence are right, all others wrong."""
    confidence = np.linspace(3, 1, 100)
    labels = (np.arange(100) >= right).astype(int)
    found = Predictions(labels, np.stack([confidence, np.zeros(100)], axis=1))
    (axes,) = draw_coverage(found, ["a", "b"]).axes
    assert len(axes.texts) == marks


def sure(confidence: np.ndarray, correct: np.ndarray) -> Predictions:
    """Predictions of the first of two classes, with this confidence."""
    odds = np.log(confidence / (1 - confidence))
    return Predictions(1 - correct.astype(int), np.stack([odds, np.zeros(len(odds))], axis=1))


@pytest.mark.parametrize("flat, possible", [(False, 0.4), (True, 0.0)])
def test_a_threshold_keeps_its_promise_in_95_of_100_validation_sets(
    flat: bool, possible: float
) -> None:
    """Of confidences that are uniform and calibrated, those from t on are (1 + t) / 2 correct.

    Or, if `flat`, a share just below the target is correct whatever the confidence.
    """
    rng, target, repetitions = np.random.default_rng(0), 0.9, 1000
    broken, shares = 0, []
    for _ in range(repetitions):
        confidence = rng.uniform(0.5, 1, 2000)
        found = sure(confidence, rng.random(2000) < (0.8999 if flat else confidence))
        threshold = choose_threshold(found, target)
        shares.append(0 if threshold is None else 2 * (1 - threshold))
        broken += threshold is not None and (0.8999 if flat else (1 + threshold) / 2) < target
    assert 0.01 < broken / repetitions <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / repetitions)
    assert np.mean(shares) >= 0.7 * possible


def test_a_threshold_keeps_all_images_of_a_confidence_or_none() -> None:
    """The 20 most confident predictions are right, with which three quarters of 40 others tie."""
    confidence = np.repeat([0.9, 0.7, 0.6], [20, 40, 40])
    found = sure(confidence, np.arange(100) % 4 > 0)
    for predictions, target, expected in (
        (sure(confidence, np.arange(100) < 60), 0.9, pytest.approx(0.7)),
        (sure(confidence, np.arange(100) < 45), 0.9, None),
        (found, 0.8, None),
        (found, 0.6, pytest.approx(0.6)),
        (sure(confidence, np.full(100, True)), 0.98, None),  # needs 149 images
    ):
        assert choose_threshold(predictions, target) == expected
    assert kept_and_correct(found, 0.65) == (60, 45)


def test_the_auroc_is_scikit_learns_with_ties() -> None:
    rng = np.random.default_rng(0)
    own, others = rng.integers(2, 9, 80) / 9, rng.integers(0, 8, 50) / 9
    expected = sk.roc_auc_score(np.repeat([1, 0], [80, 50]), np.concatenate((own, others)))
    assert auroc(own, others) == pytest.approx(expected)


def test_an_empty_bin_has_no_bar_and_the_legend_hides_none() -> None:
    found = answers("random")
    figure = draw_calibration(found, NAMES)
    figure.draw_without_rendering()
    filled = int((binned(found)[0] > 0).sum())
    assert filled < CONFIDENCE_BINS
    assert [len(bars) for axes in figure.axes for bars in axes.containers] == [filled] * 3
    (legend,) = figure.legends
    assert not any(legend.get_window_extent().overlaps(axes.bbox) for axes in figure.axes)


def test_each_row_has_the_most_probable_classes_of_an_image() -> None:
    found = answers("random", count=20)
    names = np.array([f"cats/{number}.png" for number in range(20)], dtype=object)
    rows = list(csv.DictReader(io.StringIO(csv_text(class_rows(found, names, NAMES)))))
    chances = np.exp(found.log_probabilities)
    for place, (row, order) in enumerate(zip(rows, np.argsort(-found.logits), strict=True)):
        assert row["image"] == f"cats/{place}.png"
        assert row["true"] == NAMES[found.labels[place]]
        said = [row["predicted"], *(row[f"predicted_{number}"] for number in range(2, 6))]
        assert said == [NAMES[each] for each in order[:5]]
        assert row["correct"] == str(int(row["true"] == row["predicted"]))
        own = {"probability": order[0], "true_probability": found.labels[place]}
        for column, label in (own | {"probability_5": order[4]}).items():
            assert float(row[column]) == pytest.approx(chances[place, label], abs=1e-6)


def test_two_classes_have_two_columns() -> None:
    answers = Predictions(np.array([0]), np.array([[1.0, 2.0]]))
    table = csv_text(class_rows(answers, [5], ["a", "b\n"]))
    header, row = csv.reader(io.StringIO(table))
    assert header[-2:] == ["predicted_2", "probability_2"] and row[:4] == ["5", "a", "b\\n", "0"]


def test_the_worst_and_the_most_doubtful_images_are_shown_first() -> None:
    logits = np.array([[5.0, 0, 0], [0, 9, 0], [0, 0, 1], [3, 2.9, 0], [0, 0.5, 4]])
    labels = np.array([0, 0, 0, 0, 1])
    pixels = torch.arange(5, dtype=torch.uint8).view(5, 1, 1, 1).expand(-1, 3, 8, 8)
    images = ImageSet(pixels, torch.from_numpy(labels))
    (axes,) = draw_mistakes(Predictions(labels, logits), images, ["a", "b", "c"]).axes
    shown = [int(image.get_array().max()) for image in axes.images]
    assert shown == [1, 4, 2, 3, 0]  # the last two are right
    lines = [(text.get_text(), text.get_color()) for text in axes.texts]
    assert (lines[2], lines[-1]) == (("model: b 100 %", WRONG), ("second: b 1 %", WRONG))
    among = np.array([True, False, True])
    assert highest(np.array([1.0, 3.0, 2.0]), among) == [2, 0]


@pytest.mark.parametrize("classes", [2, 7])
def test_the_figures_can_be_drawn_of_any_predictions(classes: int) -> None:
    labels = np.arange(5) % classes
    images = ImageSet(torch.zeros(5, 3, 8, 8, dtype=torch.uint8), torch.from_numpy(labels))
    names = ["$a_b$ <x>", "long " * 9, *map(str, range(classes))][:classes]
    for logits in (np.eye(classes)[labels] * 9, np.zeros((5, classes))):
        found = Predictions(labels, logits)
        drawn = [draw(found, names) for draw in FIGURES.values()]
        for figure in (*drawn, draw_mistakes(found, images, names)):
            figure.draw_without_rendering()
            texts = [text for text in figure.findobj(Text) if text.get_text()]
            assert min(text.get_fontsize() for text in texts) * figure.dpi / 72 > 11  # pixels


@pytest.mark.parametrize("classes", [[0, 1, 2, 3, 4], [1, 4], [2]])
def test_the_matrix_is_that_of_scikit_learn(classes: list[int]) -> None:
    rng = np.random.default_rng(0)
    answers = Predictions(rng.choice(classes, 200), rng.normal(size=(200, 5)))
    expected = sk.confusion_matrix(answers.labels, answers.predicted, labels=range(5))
    matrix = confusion_matrix(answers)
    np.testing.assert_array_equal(matrix, expected)
    pairs = [[0, 1], [2, 3], [4]]
    together = [[matrix[np.ix_(rows, columns)].sum() for columns in pairs] for rows in pairs]
    assert confusion_matrix(answers, together=2).tolist() == together


def test_thousands_of_classes_are_drawn_in_as_many_cells_as_there_are_pixels() -> None:
    labels = np.arange(2500)
    answers = Predictions(labels, np.eye(2500, dtype=np.float32)[labels])
    (image,) = draw_confusion(answers, [str(label) for label in labels]).axes[0].images
    assert image.get_array().shape == (834, 834)
    assert image.get_extent()[1] == 834 * 3 - 0.5


@pytest.mark.parametrize("count", [2, 10, 100])
def test_the_figure_names_as_many_classes_as_can_be_read(count: int) -> None:
    names = [f"$class_{number} <b>" for number in range(count)]
    labels = np.arange(count).repeat(3)
    figure = draw_confusion(Predictions(labels, np.eye(count)[labels]), names)
    figure.draw_without_rendering()
    axes, readable = figure.axes[0], count < 100
    assert len(axes.texts) == count * readable
    shown = [tick.get_text().replace(r"\$", "$") for tick in axes.get_yticklabels()]
    assert (shown == names) == readable


def test_a_class_without_images_is_gray_not_never_right() -> None:
    answers = Predictions(np.array([0, 0, 2]), np.eye(3)[[0, 1, 2]])
    (image,) = draw_confusion(answers, ["a", "b", "c"]).axes[0].images
    colors = image.to_rgba(image.get_array())[..., :3]
    red, green, blue = colors[1].T
    assert (red == green).all() and (green == blue).all() and (red > 0.8).all() and (red < 1).all()
    assert not np.isclose(colors[[0, 2]], colors[1]).all(axis=-1).any()
