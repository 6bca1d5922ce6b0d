"""What is known of a model after a whole split, every image with the same weight."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, variance
from typing import ClassVar

import numpy as np


@dataclass(frozen=True)
class Evaluation:
    """Means over a whole split. Of two epochs the one with the higher `score` is better."""

    count: int
    loss: float

    scalars: ClassVar[tuple[str, ...]] = ("loss",)
    best_by: ClassVar[str] = "loss"

    @property
    def score(self) -> float:
        return -self.loss

    @property
    def values(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in self.scalars}


@dataclass(frozen=True)
class Classification(Evaluation):
    """Accuracies are fractions, the loss is the mean cross-entropy."""

    acc: float
    top5: float
    per_class_correct: list[int]
    per_class_count: list[int]

    scalars: ClassVar[tuple[str, ...]] = ("loss", "acc", "top5")
    best_by: ClassVar[str] = "acc"

    @property
    def score(self) -> float:
        return self.acc

    @property
    def interval(self) -> tuple[float, float]:
        return wilson_interval(round(self.acc * self.count), self.count)


# Beyond ± this lie 5 % of the normal distribution.
Z = 1.959964


def wilson(share: float, count: int) -> tuple[float, float]:
    """The centre of Wilson's 95 % interval (1927) of a proportion, and its half in units of Z."""
    centre = (share + Z * Z / (2 * count)) / (1 + Z * Z / count)
    spread = math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    return centre, spread / (1 + Z * Z / count)


def wilson_interval(successes: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a proportion; unlike ±z·σ it stays inside 0…1."""
    centre, spread = wilson(successes / count, count)
    return max(0.0, centre - Z * spread), min(1.0, centre + Z * spread)


def interval_of_mean(shares: Sequence[float], count: int) -> tuple[float, float]:
    """The 95 % interval of the mean of several runs' shares of `count` test images.

    It speaks of other seeds and other images: all runs have seen the same ones, whose variance
    (Wilson's) is therefore not divided by the number of runs, as the seeds' is. The seeds' is known
    from a few runs alone: Student's t, with the degrees of freedom of Satterthwaite 1946. Of runs
    that agree it is Wilson's interval.
    """
    centre, spread = wilson(mean(shares), count)
    seeds = variance(shares) / len(shares)
    total = spread**2 + seeds
    freedom = (len(shares) - 1) * (total / seeds) ** 2 if seeds else math.inf
    half = student_quantile(freedom) * math.sqrt(total)
    return max(0.0, centre - half), min(1.0, centre + half)


def student_quantile(freedom: float) -> float:
    """Beyond ± this lie 5 % of Student's t with ν degrees of freedom.

    With t = √ν tan θ its density becomes cos(θ)^(ν − 1), which is easily summed.
    """
    freedom = min(freedom, 1e4)  # from where on it is the normal distribution's
    angle = np.linspace(0, math.pi / 2, 20_001)
    density = np.cos(angle) ** (freedom - 1)
    area = np.cumsum(density[1:] + density[:-1])
    return math.sqrt(freedom) * math.tan(float(np.interp(0.95 * area[-1], area, angle[1:])))
