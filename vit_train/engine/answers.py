"""What a classifier says of every image of a split."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Answers:
    """What a classifier says of each of N images, with K classes."""

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
        """Return the class with the highest logit, (N,); of equal ones the first."""
        highest: Integers = self.logits.argmax(axis=1)
        return highest

    @cached_property
    def confidence(self) -> Floats:
        """Return the softmax probability of the predicted class, (N,)."""
        highest: Floats = np.exp(self.log_probabilities.max(axis=1))
        return highest

    @cached_property
    def losses(self) -> Floats:
        """Return the cross-entropy of each image, (N,)."""
        return -of_label(self.log_probabilities, self.labels)

    @cached_property
    def ranks(self) -> Integers:
        """Return the place of the true class in `top`, counted from 0, (N,).

        It is the last place if its logit is NaN, and a class whose logit is NaN comes before it.
        """
        own, label = of_label(self.logits, self.labels)[:, None], self.labels[:, None]
        later = np.arange(self.classes) > label  # of equal logits the first class comes first
        below: Integers = ((self.logits < own) | ((self.logits == own) & later)).sum(axis=1)
        return self.classes - 1 - below

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Return whether the predicted class is the true one, (N,)."""
        return np.asarray(self.ranks == 0)

    def counts(self, classes: Integers) -> Integers:
        """Return how often each class is among these, (K,)."""
        found: Integers = np.bincount(classes, minlength=self.classes)
        return found

    @property
    def hits(self) -> Integers:
        """Return how many images of each class were answered correctly, (K,)."""
        return self.counts(self.labels[self.correct])

    def top(self, count: int) -> Integers:
        """Return the classes with the highest logits, the highest first: (N,count)."""
        order: Integers = np.argsort(-self.logits, axis=1, kind="stable")
        return order[:, :count]


def log_softmax(logits: Floats) -> Floats:
    with np.errstate(invalid="ignore"):  # a diverged model has infinite logits
        shifted = logits - logits.max(axis=1, keepdims=True)
        result: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def of_label(values: Floats, labels: Integers) -> Floats:
    """Return the value (N,) of each row's label: (N,K), (N,)."""
    chosen: Floats = np.take_along_axis(values, labels[:, None], axis=1)[:, 0]
    return chosen
