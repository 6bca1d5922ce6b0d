"""Predictions for a whole split, and their metrics with confidence intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import mean, variance
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

Booleans = NDArray[np.bool_]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
# The lower and the upper end.
Interval = tuple[float, float]


@dataclass(frozen=True)
class Predictions:
    """A classifier's predictions for N images and K classes, with the true labels."""

    labels: Integers  # (N,)
    logits: Floats  # (N,K)

    @property
    def classes(self) -> int:
        return int(self.logits.shape[1])

    @cached_property
    def log_probabilities(self) -> Floats:
        """Return the logarithm of the softmax, (N,K)."""
        return log_softmax(self.logits)

    @cached_property
    def predicted(self) -> Integers:
        """Return the class with the highest logit, (N,); for equal logits, the first such class."""
        return self.logits.argmax(axis=1)  # type: ignore[no-any-return]

    @cached_property
    def confidence(self) -> Floats:
        """Return the softmax probability of the predicted class, (N,)."""
        return np.exp(self.log_probabilities.max(axis=1))  # type: ignore[no-any-return]

    def calibrated(self, temperature: float | None) -> "Predictions":
        """Return the predictions with all logits divided by `temperature`; None stands for 1."""
        return Predictions(self.labels, self.logits / (temperature or 1.0))

    @cached_property
    def losses(self) -> Floats:
        """Return the cross-entropy of each image, (N,)."""
        return -of_label(self.log_probabilities, self.labels)

    @cached_property
    def ranks(self) -> Integers:
        """Return the rank of each image's true class by logit, (N,); the highest logit has rank 0.

        Among equal logits, the class with the lower number ranks first, as in `top`. A NaN logit of
        the true class ranks last; a NaN logit of another class ranks above the true class.
        """
        own = of_label(self.logits, self.labels)[:, None]
        label = self.labels[:, None]
        later = np.arange(self.classes) > label  # of equal logits the first class comes first
        below = (self.logits < own) | ((self.logits == own) & later)
        return self.classes - 1 - below.sum(axis=1)  # type: ignore[no-any-return]

    @property
    def correct(self) -> Booleans:
        """Return True for each image whose predicted class is the true class: bool (N,)."""
        return self.ranks == 0  # type: ignore[no-any-return]

    def counts(self, classes: Integers) -> Integers:
        """Return how often each class occurs in `classes`: (K,)."""
        return np.bincount(classes, minlength=self.classes)

    @property
    def hits(self) -> Integers:
        """Return the number of correctly predicted images of each class: (K,)."""
        return self.counts(self.labels[self.correct])

    def top(self, count: int) -> Integers:
        """Return the classes with the highest logits, the highest first: (N,count)."""
        return np.argsort(-self.logits, axis=1, kind="stable")[:, :count]


def log_softmax(logits: Floats) -> Floats:
    with np.errstate(invalid="ignore"):  # a diverged model has infinite logits
        shifted = logits - logits.max(axis=1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))  # type: ignore[no-any-return]


def of_label(values: Floats, labels: Integers) -> Floats:
    """Return values[i, labels[i]] for each row i: (N,), from values (N,K) and labels (N,)."""
    return np.take_along_axis(values, labels[:, None], axis=1)[:, 0]


def score(values: Mapping[str, float], best_by: str) -> float:
    """Return the value that selects the best epoch, negated for a loss: higher is better."""
    return -values["loss"] if best_by == "loss" else values[best_by]


@dataclass(frozen=True)
class Evaluation:
    """Results for a whole split of `count` images."""

    count: int
    loss: float
    # Measures that callbacks add to those of the task.
    more: dict[str, float] = field(default_factory=dict, init=False)

    scalars: ClassVar[tuple[str, ...]] = ("loss",)

    @property
    def values(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in self.scalars} | self.more


# The results of a run's weights: "final" and, with validation, "best".
Results = dict[str, Evaluation]


@dataclass(frozen=True)
class Classification(Evaluation):
    """Results of a classifier: accuracies as fractions, and the mean cross-entropy as loss."""

    acc: float
    top5: float
    # The mean of the accuracies of all classes that have images.
    balanced_acc: float
    per_class_correct: list[int]
    per_class_count: list[int]
    predictions: Predictions = field(repr=False, compare=False)

    scalars: ClassVar[tuple[str, ...]] = ("loss", "acc", "top5", "balanced_acc")

    @classmethod
    def of(cls, predictions: Predictions) -> "Classification":
        """Compute the results from a classifier's predictions for a whole split."""
        hits = predictions.hits
        per_class = predictions.counts(predictions.labels)
        return cls(
            count=len(predictions.labels),
            loss=float(predictions.losses.mean()),
            acc=float(predictions.correct.mean()),
            top5=float((predictions.ranks < 5).mean()),
            balanced_acc=float((hits[per_class > 0] / per_class[per_class > 0]).mean()),
            per_class_correct=hits.tolist(),
            per_class_count=per_class.tolist(),
            predictions=predictions,
        )

    @property
    def interval(self) -> Interval:
        return wilson_interval(round(self.acc * self.count), self.count)


def is_uneven(counts: Sequence[int]) -> bool:
    """Return True if the largest class has at least three times as many images as the smallest."""
    return max(counts) >= 3 * min(counts)


# 5 % of the standard normal distribution lies outside ±Z.
Z = 1.959964


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return the center of Wilson's 95 % interval (1927), and its half-width divided by Z.

    `share` is the proportion, measured on `count` images.
    """
    center = (share + Z * Z / (2 * count)) / (1 + Z * Z / count)
    spread = math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    return center, spread / (1 + Z * Z / count)


def wilson_interval(successes: int, count: int) -> Interval:
    """Return Wilson's 95 % interval of the proportion successes / count, always within 0…1."""
    center, spread = wilson(successes / count, count)
    return max(0.0, center - Z * spread), min(1.0, center + Z * spread)


def binomial_tail(successes: int, count: int, share: float) -> float:
    """Return the probability of at least `successes` in `count` trials.

    Each trial succeeds with probability `share`, which is neither 0 nor 1.
    """
    failures = np.arange(count - successes + 1)
    # C(n, k) = C(n, k − 1) · (n + 1 − k) / k, in logarithms, because C(n, k) would overflow.
    ratios = (count + 1 - failures[1:]) / failures[1:]
    log_binomials = np.cumsum(np.log(np.concatenate(([1.0], ratios))))
    log_powers = (count - failures) * math.log(share) + failures * math.log1p(-share)
    return float(np.exp(log_binomials + log_powers).sum())


# The confidence level of a one-sided bound is 1 − ALPHA.
ALPHA = 0.05


def lower_bound(successes: int, count: int) -> float:
    """Return the exact one-sided 95 % lower bound of a proportion (Clopper & Pearson 1934).

    The bound is the proportion p at which at least `successes` of `count` trials would occur with
    probability ALPHA; it is found by bisection.
    """
    low = 0.0
    high = 1.0
    for _ in range(40):
        middle = (low + high) / 2
        above = binomial_tail(successes, count, middle) > ALPHA
        low, high = (low, middle) if above else (middle, high)
    return low


def fewest_trials(share: float) -> int:
    """Return how many successes without a failure give a `lower_bound` of at least `share`."""
    return math.ceil(math.log(ALPHA) / math.log(share))


def interval_of_mean(shares: Sequence[float], count: int) -> Interval:
    """Return a 95 % interval of the mean accuracy of several runs, tested on the same images.

    `shares` are the runs' accuracies on `count` images. The interval covers the variation between
    seeds and between test images. The variance due to the seeds is divided by the number of runs.
    The variance due to the images (Wilson's) is not, because all runs are tested on the same
    images. The variance due to the seeds is estimated from a few runs, so the interval uses
    Student's t, with the degrees of freedom of Satterthwaite (1946). The interval is conservative,
    because the variance between runs contains part of the variance due to the images, which is thus
    counted twice. If all accuracies are equal, the result is Wilson's interval.
    """
    center, spread = wilson(mean(shares), count)
    seeds = variance(shares) / len(shares)
    total = spread**2 + seeds
    freedom = (len(shares) - 1) * (total / seeds) ** 2 if seeds else math.inf
    half = student_quantile(freedom) * math.sqrt(total)
    return max(0.0, center - half), min(1.0, center + half)


def student_quantile(freedom: float, share: float = 0.95) -> float:
    """Return the value t for which `share` of Student's distribution lies within ±t.

    The distribution has ν = `freedom` degrees of freedom. With t = √ν tan θ, the density of θ is
    proportional to cos(θ)^(ν − 1), which is easy to integrate numerically.
    """
    freedom = min(freedom, 1e4)  # beyond this, it is practically the normal distribution's
    angle = np.linspace(0, math.pi / 2, 20_001)
    density = np.cos(angle) ** (freedom - 1)
    area = np.cumsum(density[1:] + density[:-1])
    return math.sqrt(freedom) * math.tan(float(np.interp(share * area[-1], area, angle[1:])))


@dataclass(frozen=True)
class Paired:
    """A comparison of two classifiers by their predictions for the same images."""

    images: int
    # The numbers of images that only the first, and only the second, gets right.
    only_first: int
    only_second: int

    @classmethod
    def of(cls, first: Booleans, second: Booleans) -> "Paired":
        """Compare two classifiers by which of the same images each gets right: bool (N,)."""
        return cls(len(first), int((first & ~second).sum()), int((second & ~first).sum()))

    @property
    def difference(self) -> float:
        """Return the accuracy of the second classifier minus the accuracy of the first."""
        return (self.only_second - self.only_first) / self.images

    @property
    def interval(self) -> Interval:
        """Return the 95 % interval of the difference (Bonett & Price 2012, equation 6)."""
        total = self.images + 2
        a = (self.only_first + 1) / total
        b = (self.only_second + 1) / total
        half = Z * math.sqrt((a + b - (a - b) ** 2) / total)
        return max(-1.0, b - a - half), min(1.0, b - a + half)

    @property
    def p_value(self) -> float:
        """Return the p-value of the difference by the exact two-sided test of McNemar (1947).

        The p-value is the probability of a difference at least this large between two equally good
        classifiers: each image that only one classifier gets right is then a coin toss.
        """
        tosses = self.only_first + self.only_second
        more = max(self.only_first, self.only_second)
        return min(1.0, 2 * binomial_tail(more, tosses, 0.5))
