"""predictions.csv: what a classifier says of every image."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from vit_train.engine.answers import Answers
from vit_train.text import printable

# Classes that are named for each image.
TOP = 5


def predictions(
    answers: Answers, names: Iterable[object], classes: Sequence[str]
) -> Iterator[list[object]]:
    """Yield the rows of a table: a header, then a row for each image.

    Its columns are the image, its true and its predicted class, the probabilities of both, and the
    other most probable classes with theirs.
    """
    named = [printable(name) for name in classes]
    top = answers.top(min(TOP, answers.classes))
    probabilities = np.exp(answers.log_probabilities)
    header = ["image", "true", "predicted", "correct", "probability", "true_probability"]
    for place in range(2, top.shape[1] + 1):
        header += [f"predicted_{place}", f"probability_{place}"]
    yield list(header)
    for name, label, right, best, row in zip(
        names, answers.labels, answers.correct, top, probabilities, strict=True
    ):
        first, *others = best
        cells: list[object] = [printable(str(name)), named[label], named[first], int(right)]
        cells += [f"{row[first]:.6f}", f"{row[label]:.6f}"]
        for other in others:
            cells += [named[other], f"{row[other]:.6f}"]
        yield cells
