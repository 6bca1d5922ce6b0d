"""Precision, recall and F1 of every class, and their means."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vit_train.engine.answers import Answers, Floats


@dataclass(frozen=True)
class ClassReport:
    """What a classifier makes of one class, or the mean over classes; 0/0 counts as 0."""

    name: str
    # Of the images that were taken for the class, the share that are of it.
    precision: float
    # Of the images of the class, the share that were taken for it.
    recall: float
    # The harmonic mean of the two.
    f1: float
    # The number of images of the class, and of those that were taken for it.
    support: int
    predicted: int


def class_reports(answers: Answers, classes: Sequence[str]) -> list[ClassReport]:
    """Return one report for each class, in order."""
    right = answers.hits
    taken, support = answers.counts(answers.predicted), answers.counts(answers.labels)
    precision, recall = quotient(right, taken), quotient(right, support)
    f1 = quotient(2 * right, taken + support)
    columns = (each.tolist() for each in (precision, recall, f1, support, taken))
    return [
        ClassReport(name, *row)
        for name, row in zip(classes, zip(*columns, strict=True), strict=True)
    ]


def averages(reports: Sequence[ClassReport]) -> list[ClassReport]:
    """Return the macro average and the one weighted by support.

    Classes that no image has and none was taken for are left out, as in scikit-learn.
    """
    present = [report for report in reports if report.support or report.predicted]
    columns = [(each.precision, each.recall, each.f1) for each in present]
    support = [each.support for each in present]

    def average(name: str, weights: Sequence[int] | None) -> ClassReport:
        precision, recall, f1 = np.average(columns, 0, weights).tolist()
        return ClassReport(name, precision, recall, f1, sum(support), sum(support))

    return [average("macro average", None), average("weighted average", support)]


def quotient(part: np.ndarray, whole: np.ndarray) -> Floats:
    result: Floats = np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)
    return result
