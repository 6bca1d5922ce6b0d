import pytest

from vit_train.engine.metrics import Evaluation, wilson_interval


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    # statsmodels.stats.proportion.proportion_confint(..., method="wilson")
    [(5, 10, 0.2366, 0.7634), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0)],
)
def test_wilson_interval(successes: int, count: int, low: float, high: float) -> None:
    assert wilson_interval(successes, count) == pytest.approx((low, high), abs=1e-4)


def test_of_two_losses_the_lower_one_is_better() -> None:
    assert Evaluation(count=1, loss=0.1).score > Evaluation(count=1, loss=0.2).score
