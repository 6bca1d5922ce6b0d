"""Predictions of several labels per image, the tags, and their metrics."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from vit_train.loop.metrics import Booleans, Evaluation, Floats, Integers, Interval

# The threshold of a tag's probability, if none is chosen on validation images.
THRESHOLD = 0.5
# The numbers of bootstrap samples for an interval of mAP, and of an F1.
MAP_SAMPLES = 200
F1_SAMPLES = 2000


@dataclass(frozen=True)
class TagPredictions:
    """Predictions for N images and K tags, with the true tags."""

    truth: Booleans  # (N,K)
    logits: Floats  # (N,K)

    @cached_property
    def probabilities(self) -> Floats:
        """Return the sigmoid of the logits, (N,K)."""
        return 0.5 * (1 + np.tanh(0.5 * self.logits))

    @cached_property
    def average_precisions(self) -> Floats:
        """Return the average precision of each tag, (K,); NaN for a tag that no image has."""
        return self.sampled_precisions(np.ones((1, len(self.truth)), dtype=np.int64))[:, 0]

    def sampled_precisions(self, samples: Integers) -> Floats:
        """Return the average precision of each tag in samples of the images, (K,S).

        `samples` (S,N) is how often each image is in each sample.
        """
        return np.array(
            [
                [
                    average_precision(hits, taken)
                    for _, hits, taken in ranked(truth, logits, samples)
                ]
                for truth, logits in zip(self.truth.T, self.logits.T, strict=True)
            ]
        )

    @cached_property
    def sampled_maps(self) -> Floats:
        """Return mAP in bootstrap samples of the images, (MAP_SAMPLES,).

        The samples are the same for all predictions of N images.
        """
        rng = np.random.default_rng(0)
        count = len(self.truth)
        chosen = (rng.integers(count, size=count) for _ in range(MAP_SAMPLES))
        samples = np.stack([np.bincount(each, minlength=count) for each in chosen])
        return mean_over_tags(self.sampled_precisions(samples))

    def counts(self, thresholds: Floats) -> Integers:
        """Count each tag's true positives, false positives and false negatives: (K,3).

        A tag is predicted if its probability reaches its threshold, one of `thresholds` (K,).
        """
        predicted = self.probabilities >= thresholds
        parts = predicted & self.truth, predicted & ~self.truth, ~predicted & self.truth
        return np.stack([part.sum(axis=0) for part in parts], axis=1)

    def f1_intervals(self, thresholds: Floats) -> Floats:
        """Return the 95 % interval of each tag's F1, (K,2), by bootstrap over the images.

        In a bootstrap sample, the numbers of one tag have a multinomial distribution.
        """
        rng = np.random.default_rng(0)
        total = len(self.truth)
        ends = []
        for counts in self.counts(thresholds):
            shares = np.append(counts, total - counts.sum()) / total
            samples = rng.multinomial(total, shares, size=F1_SAMPLES)[:, :3]
            ends.append(percentiles(f1(samples)))
        return np.stack(ends)

    @property
    def best_thresholds(self) -> Floats:
        """Return the threshold of each tag with the highest F1 on these images, (K,).

        A tag that no image has gets THRESHOLD.
        """
        return np.array(
            [
                best_threshold(truth, scores) if truth.any() else THRESHOLD
                for truth, scores in zip(self.truth.T, self.probabilities.T, strict=True)
            ]
        )


def percentiles(samples: Floats) -> Interval:
    """Return the ends of the range that contains the middle 95 % of the samples (S,)."""
    low, high = np.quantile(samples, (0.025, 0.975)).tolist()
    return low, high


def ranked(
    truth: Booleans, scores: Floats, samples: Integers
) -> Iterator[tuple[Floats, Integers, Integers]]:
    """For each sample, yield the distinct scores, highest first, with two counts for each score.

    The counts are cumulative, over the sample's images with at least this score: those with the
    tag, and all. `samples` (S,N) is how often each image is in each sample.
    """
    order = np.argsort(-scores, kind="stable")
    last = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    for times in samples[:, order]:
        yield scores[order][last], (times * truth[order]).cumsum()[last], times.cumsum()[last]


def average_precision(hits: Integers, taken: Integers) -> float:
    """Return the area under the steps of precision over recall, as scikit-learn does.

    The counts are those of `ranked`. Return NaN if no image has the tag.
    """
    area = (np.diff(hits, prepend=0) * hits / np.maximum(1, taken)).sum()
    return float(area / hits[-1]) if hits[-1] else np.nan


def mean_over_tags(precisions: Floats) -> Floats:
    """Return mAP, the mean of `precisions` (K,…) over the tags that occur; 0 if none occur."""
    count = (~np.isnan(precisions)).sum(axis=0)
    return np.nansum(precisions, axis=0) / np.maximum(1, count)  # type: ignore[no-any-return]


def best_threshold(truth: Booleans, scores: Floats) -> float:
    """Return the threshold with the highest F1, halfway to the next lower score or 0."""
    values, hits, taken = next(ranked(truth, scores, np.ones((1, len(truth)), dtype=np.int64)))
    best = np.argmax(2 * hits / (taken + hits[-1]))  # of the F1 at each distinct score
    return float(values[best] + np.append(values, 0)[best + 1]) / 2


def f1(counts: Integers) -> Floats:
    """Return F1 from counts (…,3) of true positives, false positives and false negatives.

    0/0 counts as 0.
    """
    right = 2 * counts[..., 0]
    wrong = counts[..., 1] + counts[..., 2]
    return right / np.maximum(1, right + wrong)


@dataclass(frozen=True)
class Tagging(Evaluation):
    """Results of predicting tags; F1 and accuracy are at a threshold of THRESHOLD.

    `macro_f1` is the mean over the tags that occur or are predicted. `micro_f1` counts all tags
    together. `tag_acc` is the share of all decisions, one per image and tag, that are correct.
    """

    map: float
    micro_f1: float
    macro_f1: float
    tag_acc: float
    predictions: TagPredictions = field(repr=False, compare=False)

    scalars: ClassVar[tuple[str, ...]] = ("loss", "map", "micro_f1", "macro_f1", "tag_acc")

    @property
    def interval(self) -> Interval:
        """Return the 95 % interval of mAP, by bootstrap over the images."""
        return percentiles(self.predictions.sampled_maps)

    @classmethod
    def of(cls, predictions: TagPredictions) -> "Tagging":
        """Compute the results from the predictions for a whole split."""
        counts = predictions.counts(np.full(predictions.truth.shape[1], THRESHOLD))
        losses = np.logaddexp(0, predictions.logits) - predictions.truth * predictions.logits
        return cls(
            count=len(predictions.truth),
            loss=float(losses.mean()),
            map=float(mean_over_tags(predictions.average_precisions)),
            **average_f1(counts),
            tag_acc=1 - float(counts[:, 1:].sum()) / predictions.truth.size,
            predictions=predictions,
        )


def average_f1(counts: Integers) -> dict[str, float]:
    """Return micro and macro F1 from each tag's counts (K,3)."""
    present = counts.sum(axis=1) > 0
    macro = float(f1(counts)[present].mean()) if present.any() else 0.0
    return {"micro_f1": float(f1(counts.sum(axis=0))), "macro_f1": macro}
