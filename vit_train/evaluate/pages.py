"""The page report.html for one model; the page needs no other files.

The text comes from the templates; the numbers are those in results.json.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from vit_train.base.text import render
from vit_train.config.fields import in_pixels
from vit_train.data.dataset import ImageSet
from vit_train.evaluate.summaries import Json
from vit_train.figures.images import highest
from vit_train.figures.measures import MOST_NAMED
from vit_train.loop.metrics import Classification, Evaluation, Floats, Predictions
from vit_train.loop.tagging import Tagging, TagPredictions

# The number of confused pairs of classes to name.
PAIRS = 5
# The most pictures on a page and in each of its galleries, and a picture's side in pixels.
PICTURES = 800
EACH = 12
PICTURE_SIDE = 96


def evaluation_page(
    content: Json, result: Evaluation, images: ImageSet, run: Json, pictures: Mapping[str, bytes]
) -> str:
    """Return the page of one model, evaluated on `images`.

    `content` is the content of results.json, `run` is the summary of the model's run, and
    `pictures` maps names to the bytes of PNG files.
    """
    more: Json = {}
    if isinstance(result, Classification):
        more = confusions(result.predictions, images)
    elif isinstance(result, Tagging):
        thresholds = np.array([each["threshold"] for each in content["per_tag"]])
        more = wrong_tags(result.predictions, thresholds, images)
    return render(
        "evaluate",
        "evaluation.html",
        content=content,
        run=run,
        size=in_pixels(content["image_size"]),
        pictures=pictures,
        **more,
    )


def confusions(predictions: Predictions, images: ImageSet) -> Json:
    """Return the values that the page shows for a classifier's predictions.

    `cells` maps each cell of the confusion matrix (true class, predicted class) to the indices of
    its images, highest confidence first. `pairs` lists the cells with the most mistakes. `shown`
    maps cells to their first images, as `gallery` does. The cells in `shown` are all cells or, for
    more than MOST_NAMED classes, only `pairs`. `confidence` is the mean of all images.
    """
    cells: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index in np.argsort(-predictions.confidence, kind="stable").tolist():
        cells[int(predictions.labels[index]), int(predictions.predicted[index])].append(index)
    mistakes = (cell for cell in cells if cell[0] != cell[1])
    pairs = sorted(mistakes, key=lambda cell: (-len(cells[cell]), cell))[:PAIRS]
    shown = sorted(cells) if predictions.classes <= MOST_NAMED else pairs
    chances = np.exp(predictions.log_probabilities)
    return {
        "cells": cells,
        "pairs": pairs,
        "shown": gallery({cell: cells[cell] for cell in shown}, chances, images),
        "confidence": predictions.confidence.mean(),
    }


def wrong_tags(predictions: TagPredictions, thresholds: Floats, images: ImageSet) -> Json:
    """Return `cells` and `shown`: the mistakes at the `thresholds` (K,), for the page.

    `cells` maps ("wrong", tag) to the indices of its false positives, most probable first, and
    ("missed", tag) to those of its false negatives, least probable first. `shown` has their first
    images, as `gallery` returns them.
    """
    truth = predictions.truth
    chances = predictions.probabilities
    given = chances >= thresholds
    cells = {}
    for tag in range(len(thresholds)):
        cells["wrong", tag] = highest(chances[:, tag], (given & ~truth)[:, tag], len(truth))
        cells["missed", tag] = highest(-chances[:, tag], (truth & ~given)[:, tag], len(truth))
    return {"cells": cells, "shown": gallery(cells, chances, images)}


def gallery(
    cells: Mapping[tuple[Any, int], Sequence[int]], chances: Floats, images: ImageSet
) -> dict[tuple[Any, int], list[tuple[Any, float, bytes]]]:
    """Return, for each cell, its first images as name, probability and WebP data.

    `cells` maps cells to the indices of images. A cell's second part is a class; the probability is
    that of this class, from `chances` (N,K).
    """
    each = max(1, min(EACH, PICTURES // (len(cells) or 1)))
    names = images.all_names
    return {
        cell: [
            (names[index], chances[index, cell[1]], webp(images.images[index]))
            for index in indices[:each]
        ]
        for cell, indices in cells.items()
    }


def webp(pixels: Tensor) -> bytes:
    """Return a uint8 image (3,H,W) as WebP, reduced to at most PICTURE_SIDE pixels."""
    image = Image.fromarray(pixels.permute(1, 2, 0).cpu().numpy())
    file = BytesIO()
    image.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
    image.save(file, "webp", quality=90)
    return file.getvalue()
