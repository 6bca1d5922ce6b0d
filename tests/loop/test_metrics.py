"""The evaluation of a split, and the intervals of its results."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import binom, binomtest
from small_trainers import FP32
from torch import nn

from vit_train.config.model import ModelConfig
from vit_train.config.tasks import ClassifyConfig
from vit_train.loop.metrics import (
    Paired,
    binomial_tail,
    interval_of_mean,
    lower_bound,
    student_quantile,
    wilson_interval,
)
from vit_train.loop.objective import evaluate
from vit_train.tasks.classify import Classify

CLASSIFY = Classify(ClassifyConfig(), ModelConfig(), (1, 1, 10), 10)


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    # statsmodels.stats.proportion.proportion_confint(..., method="wilson")
    [(5, 10, 0.2366, 0.7634), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0)],
)
def test_wilson_interval(successes: int, count: int, low: float, high: float) -> None:
    assert wilson_interval(successes, count) == pytest.approx((low, high), abs=1e-4)


def test_the_interval_of_a_difference_is_that_of_bonett_and_price_by_hand() -> None:
    assert Paired(100, 12, 5).interval == pytest.approx((-0.151320, 0.014065), abs=1e-5)


@pytest.mark.parametrize(
    ("successes", "count"), [(0, 0), (0, 9), (1, 3), (59, 59), (830, 1000), (24_900, 25_000)]
)
def test_the_lower_bound_is_the_exact_one(successes: int, count: int) -> None:
    tail = binom.sf(successes - 1, count, 0.8)
    assert binomial_tail(successes, count, 0.8) == pytest.approx(tail, rel=1e-9)
    if count:
        exact = binomtest(successes, count, alternative="greater").proportion_ci(0.95).low
        assert lower_bound(successes, count) == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize(
    ("freedom", "quantile"),  # scipy.stats.t.ppf(0.975, freedom)
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (10, 2.22814), (1e9, 1.95996)],
)
def test_students_quantile(freedom: float, quantile: float) -> None:
    assert student_quantile(freedom) == pytest.approx(quantile, rel=2e-4)


def test_the_interval_of_a_mean_covers_95_percent() -> None:
    """Of three seeds with a spread, on images which all of them see: in 95 % of all repetitions."""
    rng = np.random.default_rng(0)
    truth, spread, count, repetitions = 0.6, 0.01, 1000, 1500
    held = 0
    for _ in range(repetitions):
        images = rng.normal(0, np.sqrt(truth * (1 - truth) / count))
        shares = truth + images + rng.normal(0, spread, size=3)
        low, high = interval_of_mean(list(shares), count)
        held += low < truth < high
    assert held / repetitions == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize("runs", [2, 3, 5])
@pytest.mark.parametrize("successes", [0, 12, 20])
def test_seeds_that_agree_leave_the_images_uncertainty(successes: int, runs: int) -> None:
    low, high = interval_of_mean([successes / 20] * runs, 20)
    assert (low, high) == pytest.approx(wilson_interval(successes, 20), abs=1e-4)
    assert low < high


def test_an_interval_of_a_mean_stays_inside_0_to_1() -> None:
    low, high = interval_of_mean([0.0, 0.5, 1.0], 100)  # which differ so much that all is possible
    assert (low, high) == (0.0, 1.0)


def test_every_sample_counts_once_whatever_the_batches() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(103, 10, generator=generator)
    labels = torch.randint(10, (103,), generator=generator)
    batches = zip(logits.split(25), labels.split(25), strict=True)  # the last one has 3
    result = evaluate(nn.Identity(), CLASSIFY, batches, FP32)
    assert result.count == 103
    assert result.loss == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)
    assert sum(result.per_class_correct) == (logits.argmax(1) == labels).sum()
    assert result.per_class_count == torch.bincount(labels, minlength=10).tolist()


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_is_without_dropout_and_leaves_the_model_in_its_mode(training: bool) -> None:
    model = nn.Dropout(0.5).train(training)
    logits, labels = torch.randn(50, 10), torch.randint(10, (50,))
    result = evaluate(model, CLASSIFY, [(logits, labels)], FP32)
    assert result.loss == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)
    assert model.training == training


def test_evaluation_keeps_no_graph() -> None:
    model, seen = nn.Linear(10, 10), []
    model.forward = lambda images: seen.append(F.linear(images, model.weight)) or seen[-1]
    batch = torch.randn(4, 10), torch.zeros(4, dtype=torch.long)
    evaluate(model, CLASSIFY, [batch, batch], FP32)
    assert [each.requires_grad for each in seen] == [False, False]
