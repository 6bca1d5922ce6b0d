"""predictions.csv: what a classifier says of every image."""

import csv
import io
from collections.abc import Iterable, Sequence

import numpy as np

from vit_train.engine.answers import Answers
from vit_train.text import printable

# Classes that are named for each image.
TOP = 5


def predictions_csv(answers: Answers, names: Iterable[object], classes: Sequence[str]) -> str:
    """Return a table with a row for each image.

    Its columns are the image, its true and its predicted class, the probabilities of both, and the
    other most probable classes with theirs.
    """
    named = [printable(name, keep="") for name in classes]
    top = answers.top(min(TOP, answers.classes))
    probabilities = np.exp(answers.log_probabilities)
    header = ["image", "true", "predicted", "correct", "probability", "true_probability"]
    for place in range(2, top.shape[1] + 1):
        header += [f"predicted_{place}", f"probability_{place}"]
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(header)
    for name, label, right, best, row in zip(
        names, answers.labels, answers.correct, top, probabilities, strict=True
    ):
        first, *others = best
        cells = [printable(str(name), keep=""), named[label], named[first], int(right)]
        cells += [f"{row[first]:.6f}", f"{row[label]:.6f}"]
        for other in others:
            cells += [named[other], f"{row[other]:.6f}"]
        writer.writerow(cells)
    return text.getvalue()
