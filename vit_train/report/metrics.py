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
from vit_train.text import CLASS_NAME, counted, shortened
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


def result_line(result: Evaluation) -> str:
    if not isinstance(result, Classification):
        return f"loss {result.loss:.4f} on {counted(result.count, 'image')}"
    low, high = result.interval
    top5 = f"  top-5 {result.top5:.2%}" if result.answers.classes > 5 else ""
    return (
        f"top-1 {result.acc:.2%} (95 % interval {low:.2%} to {high:.2%})  "
        f"balanced {result.balanced_acc:.2%}{top5}  loss {result.loss:.4f}  "
        f"on {counted(result.count, 'image')}"
    )


def class_table(result: Classification, classes: list[str]) -> str:
    """Format one line per class: name, accuracy, a bar, and the number of correct images of all."""
    names = [shortened(name, CLASS_NAME) for name in classes]
    width = max(map(len, names))
    lines = []
    for name, correct, count in zip(
        names, result.per_class_correct, result.per_class_count, strict=True
    ):
        if not count:
            lines.append(f"  {name:<{width}}  no images")
            continue
        share = correct / count
        bar = "█" * round(20 * share)
        lines.append(f"  {name:<{width}}  {share:7.2%}  {bar:<20}  {correct:5d} of {count}")
    return "\n".join(lines)
