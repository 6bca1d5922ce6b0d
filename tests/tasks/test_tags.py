"""Tags: their loss and their measures, compared with those of PyTorch and scikit-learn."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score, f1_score

from vit_train.config.model import ModelConfig
from vit_train.config.tasks import TagsConfig
from vit_train.evaluate.compare import compare, verdict
from vit_train.loop.tagging import Tagging, TagPredictions, percentiles
from vit_train.tasks.classify import Tags


def predictions(images: int = 60) -> TagPredictions:
    """Four tags, of which no image has the last one; many logits are equal."""
    rng = np.random.default_rng(0)
    truth = rng.random((images, 4)) < (0.5, 0.3, 0.05, 0)
    return TagPredictions(truth, np.round(2 * rng.normal(truth, 1)) / 2)


def test_measures_are_those_of_scikit_learn() -> None:
    result = Tags(TagsConfig(), ModelConfig(), (3, 8, 8), 4).evaluation(
        torch.from_numpy(np.concatenate((predictions().truth, predictions().logits), axis=1))
    )
    truth, logits = predictions().truth, predictions().logits
    expected = [average_precision_score(truth[:, tag], logits[:, tag]) for tag in range(3)]
    assert result.values["map"] == pytest.approx(np.mean(expected))
    for kind in ("micro", "macro"):
        f1 = f1_score(truth, logits >= 0, average=kind, zero_division=0)
        assert result.values[f"{kind}_f1"] == pytest.approx(f1)
    assert result.values["tag_acc"] == pytest.approx(((logits >= 0) == truth).mean())
    loss = F.binary_cross_entropy_with_logits(*map(torch.tensor, (logits, truth.astype(float))))
    assert result.loss == pytest.approx(loss.item())


def test_no_threshold_has_a_higher_f1_than_the_chosen_one() -> None:
    found = predictions()
    for tag in range(3):
        truth, chances = found.truth[:, tag], found.probabilities[:, tag]
        best = max(f1_score(truth, chances >= least) for least in chances)
        assert f1_score(truth, chances >= found.best_thresholds[tag]) == pytest.approx(best)
    assert found.best_thresholds[3] == 0.5


def test_intervals_are_those_of_resampled_images() -> None:
    found, thresholds = predictions(200), np.full(4, 0.5)
    rng = np.random.default_rng(1)
    samples = [rng.integers(200, size=200) for _ in range(300)]
    predicted = found.probabilities[:, 1] >= 0.5
    scores = [f1_score(found.truth[each, 1], predicted[each]) for each in samples]
    expected = np.quantile(scores, (0.025, 0.975))
    assert found.f1_intervals(thresholds)[1] == pytest.approx(expected, abs=0.03)
    chosen = [TagPredictions(found.truth[each], found.logits[each]) for each in samples]
    expected = np.quantile([Tagging.of(each).map for each in chosen], (0.025, 0.975))
    assert Tagging.of(found).interval == pytest.approx(expected, abs=0.03)


def test_the_interval_of_a_difference_is_that_of_the_same_resampled_images() -> None:
    one = predictions(200)
    worse = TagPredictions(one.truth, one.logits + np.random.default_rng(2).normal(size=(200, 4)))
    rng, differences = np.random.default_rng(1), []
    for _ in range(300):
        sample = rng.integers(200, size=200)
        both = (TagPredictions(each.truth[sample], each.logits[sample]) for each in (one, worse))
        first, second = (Tagging.of(each).map for each in both)
        differences.append(second - first)
    (pair,) = compare({"A": Tagging.of(one), "B": Tagging.of(worse)})
    assert pair["interval_95"] == pytest.approx(np.quantile(differences, (0.025, 0.975)), abs=0.02)
    assert pair["difference"] == Tagging.of(worse).map - Tagging.of(one).map < 0
    assert "From A to B, mAP changes by -" in verdict(pair) and pair["images"] == 200
    assert "a significant difference" in verdict(pair)
    (same,) = compare({"A": Tagging.of(one), "B": Tagging.of(one)})
    assert same["interval_95"] == [0, 0] and "may be due to chance" in verdict(same)


def test_the_loss_is_the_mean_over_tags_weighted_and_smoothed() -> None:
    logits, tags = torch.randn(6, 3), torch.tensor([[1.0, 0, 0], [1, 1, 0]]).repeat(3, 1)
    config = TagsConfig(label_smoothing=0.2, class_weights="auto")
    task = Tags(config, ModelConfig(), (3, 8, 8), 3)
    labels = torch.tensor([[1.0, 1, 0], [1, 0, 0], [1, 0, 0], [1, 0, 0]])
    task = task.for_training(labels, False, "map")
    weights = torch.tensor([1.0, 3.0, 1.0])  # the first tag is on all images, the last on none
    losses = F.binary_cross_entropy_with_logits(logits, tags * 0.8 + 0.1, reduction="none")
    expected = torch.where(tags > 0, weights, 1) * losses  # only having a tag is weighted
    loss, right = task.step_sums(lambda images: logits, torch.empty(6), tags)
    torch.testing.assert_close(loss, expected.mean(1).sum())
    torch.testing.assert_close(right, ((logits > 0) == (tags > 0)).float().mean(1).sum())
    mixed, other = (
        tags.lerp(tags.flip(1), 0.3),
        task.step_sums(lambda _: logits, tags, tags.flip(1)),
    )
    together = task.step_sums(lambda images: logits, torch.empty(6), mixed)
    torch.testing.assert_close(together, 0.7 * torch.stack((loss, right)) + 0.3 * other)


def test_an_interval_is_the_middle_95_percent() -> None:
    assert percentiles(np.linspace(0, 1, 1001)) == pytest.approx((0.025, 0.975))
