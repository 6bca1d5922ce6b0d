"""Further measures of a classifier, each a few numbers and a figure.

A new metric is a class with the methods of Metric, in a file of its own, and a line in METRICS.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, Protocol

from torch import Tensor

from vit_train.engine.answers import Answers
from vit_train.engine.metrics import Classification, Evaluation
from vit_train.report.calibration import Calibration
from vit_train.report.confusion import Confusion
from vit_train.report.coverage import Coverage
from vit_train.report.mistakes import draw_mistakes
from vit_train.viz.figures import Figure


class Metric(Protocol):
    """Something measured of the answers to a whole split."""

    def values(self, answers: Answers) -> dict[str, float]:
        """Return the numbers, by names of their own."""
        ...

    def draw(self, answers: Answers, classes: Sequence[str]) -> Figure:
        """Draw the figure; `classes` are the names of the classes."""
        ...


METRICS: dict[str, Metric] = {
    "confusion": Confusion(),
    "calibration": Calibration(),
    "coverage": Coverage(),
}


def all_values(result: Evaluation) -> dict[str, float]:
    """Return the result's own numbers and those of all metrics."""
    values = dict(result.values)
    if isinstance(result, Classification):
        for metric in METRICS.values():
            values |= metric.values(result.answers)
    return values


def result_dict(result: Evaluation) -> dict[str, Any]:
    """Return the numbers of a result, without the answers to single images."""
    without = ("answers", "best_by")
    names = [each.name for each in fields(result) if each.name not in without]
    numbers = {name: getattr(result, name) for name in names}
    if isinstance(result, Classification):
        numbers["acc_interval_95"] = list(result.interval)
    return numbers | all_values(result)


def figures(
    result: Evaluation, images: Tensor, classes: Sequence[str], names: Sequence[object] = ()
) -> Iterator[tuple[str, Figure]]:
    """Yield the figure of every metric and the mistakes among uint8 images (N,3,S,S), by name.

    `names` are the images' own.
    """
    if isinstance(result, Classification):
        for name, metric in METRICS.items():
            yield name, metric.draw(result.answers, classes)
        yield "mistakes", draw_mistakes(result.answers, images, classes, names)
