"""What is known of a model after a whole split, every image with the same weight."""

import math
from dataclasses import dataclass
from typing import ClassVar


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


def wilson_interval(successes: int, count: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % interval of a proportion (Wilson 1927); unlike ±z·σ it stays inside 0…1."""
    share = successes / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    spread = math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    half = z * spread / (1 + z * z / count)
    return max(0.0, centre - half), min(1.0, centre + half)
