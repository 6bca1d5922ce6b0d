"""The results of a model that predicts tags: a row for each tag, and one for each image."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Any

import numpy as np

from vit_train.base.text import CLASS_NAME, printable, shortened
from vit_train.engine.metrics import Floats
from vit_train.engine.tagging import TagPredictions, average_f1, f1


def tag_numbers(
    predictions: TagPredictions, classes: Sequence[str], thresholds: Floats
) -> dict[str, Any]:
    """Return the measures of each tag, and the averages of F1, at the `thresholds` (K,).

    The average precision of a tag that no image has is None; `support` is its number of images.
    """
    counts = predictions.counts(thresholds)
    keys = ("name", "support", "average_precision", "f1", "f1_interval_95", "threshold")
    rows = zip(
        classes,
        predictions.truth.sum(axis=0).tolist(),
        [None if np.isnan(each) else each for each in predictions.average_precisions.tolist()],
        f1(counts).tolist(),
        predictions.f1_intervals(thresholds).tolist(),
        thresholds.tolist(),
        strict=True,
    )
    per_tag = [dict(zip(keys, row, strict=True)) for row in rows]
    return {"per_tag": per_tag, "at_thresholds": average_f1(counts)}


def tag_table(per_tag: Sequence[dict[str, Any]]) -> str:
    """Format one line per tag, for the terminal."""
    names = [shortened(each["name"], CLASS_NAME) for each in per_tag]
    width = max(map(len, names))
    return "\n".join(
        f"  {name:<{width}}  average precision {each['average_precision']:7.2%}  "
        f"F1 {each['f1']:.3f} at {each['threshold']:.3f}  {each['support']:5d} images"
        if each["support"]
        else f"  {name:<{width}}  no images"
        for name, each in zip(names, per_tag, strict=True)
    )


def tag_rows(
    predictions: TagPredictions, names: Iterable[object], per_tag: Sequence[dict[str, Any]]
) -> Iterator[list[object]]:
    """Yield the rows of predictions.csv: a header, then a row for each image.

    The columns are the image's name, its true tags, the tags that reach their thresholds, and the
    probability of each tag.
    """
    tags = [printable(each["name"]) for each in per_tag]
    thresholds = np.array([each["threshold"] for each in per_tag])
    yield ["image", "true", "predicted", *(f"probability of {tag}" for tag in tags)]
    for name, truth, chances in zip(
        names, predictions.truth, predictions.probabilities, strict=True
    ):
        both = ("|".join(compress(tags, has)) for has in (truth, chances >= thresholds))
        yield [printable(str(name)), *both, *map("{:.6f}".format, chances)]
