"""Two classifiers on the same images, against SciPy and counting one by one."""

import csv
import io
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from vit_train.base.text import csv_text
from vit_train.data.dataset import ImageSet
from vit_train.engine.metrics import Classification, Paired, Predictions, Z
from vit_train.evaluation.comparison import (
    adjusted,
    compared,
    differences,
    distinct,
    draw_differences,
    in_words,
    require_same_images,
)
from vit_train.evaluation.evaluate import Evaluated

CLASSES = ("cat", "a, b", "<b>$x$</b>")


def answers(seed: int, count: int = 60) -> Predictions:
    """Predictions of one of several models to the same images."""
    labels = np.random.default_rng(7).integers(0, 3, count)
    logits = np.random.default_rng(seed).normal(size=(count, 3)) + np.eye(3)[labels]
    return Predictions(labels, logits)


def test_the_counts_are_those_of_counting_one_by_one() -> None:
    first, second = answers(0), answers(1)
    right = list(zip(first.correct.tolist(), second.correct.tolist(), strict=True))
    paired = Paired.of(first, second)
    assert paired.only_first == right.count((True, False)) > 0
    assert paired.only_second == right.count((False, True)) > 0
    expected = first.correct.mean() - second.correct.mean()
    assert paired.difference == pytest.approx(expected)
    assert Paired.of(second, first).difference == pytest.approx(-expected)


@pytest.mark.parametrize(
    "a, b", [(0, 0), (1, 0), (5, 5), (3, 12), (40, 61), (1200, 1310), (0, 900)]
)
def test_the_p_value_is_that_of_the_exact_binomial_test(a: int, b: int) -> None:
    expected = binomtest(a, a + b).pvalue if a + b else 1.0
    assert Paired(10_000, a, b).p_value == pytest.approx(expected, rel=1e-6)


def test_the_interval_holds_the_true_difference_as_often_as_it_says() -> None:
    """Of 1,000 samples, 95 % within three standard deviations."""
    rng = np.random.default_rng(0)
    counts = rng.multinomial(500, (0.10, 0.06, 0.84), size=1000)
    held = sum(
        low <= 0.04 <= high
        for a, b, _ in counts.tolist()
        for low, high in [Paired(500, a, b).interval]
    )
    assert abs(held / 1000 - 0.95) < 3 * math.sqrt(0.95 * 0.05 / 1000)


@pytest.mark.parametrize("a, b", [(12, 5), (0, 0), (0, 7), (30, 60)])
def test_the_interval_is_walds_with_two_images_more(a: int, b: int) -> None:
    """One that only the first gets right, and one that only the second does."""
    gains = np.array([1] * (a + 1) + [-1] * (b + 1) + [0] * (100 - a - b))
    half = Z * gains.std() / math.sqrt(len(gains))
    assert Paired(100, a, b).interval == pytest.approx((gains.mean() - half, gains.mean() + half))


def test_only_images_on_which_not_all_say_the_same_are_listed() -> None:
    three = [answers(seed) for seed in range(3)]
    names = [f"image {number}" for number in range(60)]
    rows = list(csv.DictReader(io.StringIO(csv_text(differences(three, "ABC", names, CLASSES)))))
    said = np.stack([each.predicted for each in three])
    expected = [names[i] for i in range(60) if len(set(said[:, i].tolist())) > 1]
    assert [row["image"] for row in rows] == expected
    for row in rows:
        index = names.index(row["image"])
        assert row["true"] == CLASSES[three[0].labels[index]]
        for letter, each in zip("ABC", three, strict=True):
            assert row[f"predicted_{letter}"] == CLASSES[each.predicted[index]]
            assert float(row[f"probability_{letter}"]) == pytest.approx(
                each.confidence[index], abs=1e-6
            )


@pytest.mark.parametrize("names", [("A (run)", "B ($x$)"), ("B (x)", "C (y)")])
def test_the_sheet_begins_with_the_most_wrong_of_those_that_one_alone_knows(
    names: tuple[str, str],
) -> None:
    first, second = answers(0), answers(1)
    images = torch.arange(60, dtype=torch.uint8).view(60, 1, 1, 1).expand(-1, 3, 8, 8)
    found = dict(zip(names, (first, second), strict=True))
    (axes,) = draw_differences(found, images, CLASSES).axes
    shown = np.array([int(image.get_array().max()) for image in axes.images])[:12]
    only_first = first.correct & ~second.correct
    chosen = shown[: min(12, only_first.sum())]
    assert only_first[chosen].all() and (np.diff(second.losses[chosen]) <= 0).all()
    assert second.losses[chosen[0]] == second.losses[only_first].max()
    texts = [text.get_text().replace(r"\$", "$") for text in axes.texts]
    assert texts[0] == f"Only {names[0]} is right" and f"Only {names[1]} is right" in texts
    assert texts[1].startswith(f"{names[0][0]}: ") and texts[2].startswith(f"{names[1][0]}: ")


@pytest.mark.parametrize("a, b, verdict", [(5, 9, "may be chance"), (5, 30, "more than chance")])
def test_the_words_say_whether_it_may_be_chance(a: int, b: int, verdict: str) -> None:
    labels = np.zeros(1000, dtype=int)
    right = np.eye(2)[[0] * 1000]
    found = {"A (x)": right.copy(), "B (y)": right.copy()}
    found["B (y)"][:a] = found["A (x)"][a : a + b] = [0, 1]
    (pair,) = compared({name: Predictions(labels, logits) for name, logits in found.items()})
    assert (pair["only_first"], pair["only_second"]) == (a, b)
    words = in_words(pair)
    assert verdict in words and f"{(a - b) / 10:+.2f} points" in words
    assert "adjusted" not in words
    of_many = in_words(pair | {"mcnemar_p_adjusted": 0.5})
    assert "p = 0.5 when adjusted for all pairs). That may be chance." in of_many


def evaluated(name: str, images: ImageSet, data: str = "cifar10") -> Evaluated:
    result = Classification.of(answers(0, count=4))
    meta: Any = SimpleNamespace(path=name)
    return Evaluated(meta, images, result, {"data": data, "root": "data"}, Path())


def test_only_answers_to_the_same_images_are_compared() -> None:
    plain = ImageSet(torch.zeros(4, 3, 8, 8), torch.zeros(4))
    first = evaluated("run0", plain)
    for same in (plain, replace(plain, images=torch.zeros(4, 3, 16, 16))):  # of another size
        require_same_images([first, evaluated("run1", same)])
    for other in (
        evaluated("run1", replace(plain, names=np.array([0, 1, 2, 4]))),
        evaluated("run1", plain, data="folder"),
        evaluated("run1", replace(plain, images=torch.ones(4, 3, 8, 8))),
        evaluated("run1", replace(plain, labels=torch.ones(4))),
    ):
        with pytest.raises(ValueError, match="run0 and run1 were evaluated on different images"):
            require_same_images([first, other])


def test_p_values_of_several_pairs_are_adjusted_for_their_number() -> None:
    counts = [(5, 30), (9, 20), (14, 15), (3, 18)]
    plain = [Paired(1000, *each).p_value for each in counts]
    ordered = sorted(plain)
    for own, p in zip(plain, adjusted(plain), strict=True):
        rank = ordered.index(own)
        assert p == pytest.approx(
            max(min(1, (4 - n) * p) for n, p in enumerate(ordered[: rank + 1]))
        )
    assert [p < 0.05 for p in adjusted(plain)] == [True, False, False, True]


def test_models_are_named_by_what_is_different_in_their_paths() -> None:
    first, second = (
        "outputs/a/T1/checkpoints/best.safetensors",
        "outputs/b/T2/checkpoints/best.safetensors",
    )
    assert distinct([first, second]) == ["a/T1", "b/T2"]
    assert distinct([first, "outputs/a/T2/checkpoints/best.safetensors"]) == ["T1", "T2"]
    assert distinct([first, "outputs/a/T1/checkpoints/last.safetensors"]) == ["best", "last"]
    assert distinct([first, "builtin:cifar10"]) == ["outputs/a/T1/best", "builtin:cifar10"]
    assert distinct([first, first]) == ["best", "best"]
