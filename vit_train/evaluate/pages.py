"""The pages report.html, on one model, and workbench.html, on which a user decides on photos.

They need no other files. Their text comes from the templates.
"""

import contextlib
import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vit_train.base.log import logger
from vit_train.base.text import counted, plain_cell, printable, render
from vit_train.base.writing import write_text
from vit_train.config.data import MAX_PIXELS, FolderConfig
from vit_train.config.fields import in_pixels
from vit_train.data.dataset import ImageSet
from vit_train.data.decisions import COLUMNS, read_decisions
from vit_train.data.decode import BrokenImage, opened, upright
from vit_train.evaluate.summaries import Json
from vit_train.figures.images import highest, mistakes
from vit_train.figures.measures import MOST_NAMED
from vit_train.loop.metrics import Classification, Evaluation, Floats, Predictions
from vit_train.loop.tagging import Tagging, TagPredictions

# The number of confused pairs of classes to name.
PAIRS = 5
# The most pictures in the galleries of a page, and in each gallery.
PICTURES = 400
EACH = 12
# The most pixels on a picture's longer side.
PICTURE_SIDE = 256
# The most cases in a section, so that a page has some tens of MB at most, and the longer side of a
# photo in pixels.
MOST_CASES = 150
PHOTO_SIDE = 384
# A photo: its path below data.root, its label, why it is shown, and a better label, if any.
Photo = tuple[str, str, str, str]


def evaluation_page(
    content: Json, result: Evaluation, images: ImageSet, run: Json, pictures: Mapping[str, bytes]
) -> str:
    """Return the page of one model, evaluated on `images`.

    `content` is the content of results.json, `run` is the summary of the model's run, and
    `pictures` maps names to the bytes of PNG files.
    """
    more: Json = {}
    if isinstance(result, Classification):
        more = confusions(result.predictions)
    elif isinstance(result, Tagging):
        thresholds = np.array([each["threshold"] for each in content["per_tag"]])
        more = wrong_tags(result.predictions, thresholds)
    shown = chain(*more.get("shown", {}).values(), *more.get("sheets", {}).values())
    return render(
        "evaluate",
        "evaluation.html",
        content=content,
        run=run,
        size=in_pixels(content["image_size"]),
        pictures=pictures,
        names=images.all_names,
        webp={each: image_as_webp(images, each, content) for each in set(shown)},
        **more,
    )


def confusions(predictions: Predictions) -> Json:
    """Return the values that the page shows for a classifier's predictions.

    `cells` maps each cell of the confusion matrix (true class, predicted class) to the indices of
    its images, highest confidence first. `pairs` lists the cells with the most mistakes. `shown`
    maps cells to their first images; the cells in `shown` are all cells or, for more than
    MOST_NAMED classes, only `pairs`. `sheets` maps titles to the indices of images. `top` are the
    two most probable classes (N,2), `chances` the probabilities (N,K), and `confidence` is the mean
    of all images.
    """
    cells: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index in np.argsort(-predictions.confidence, kind="stable").tolist():
        cells[int(predictions.labels[index]), int(predictions.predicted[index])].append(index)
    wrong = (cell for cell in cells if cell[0] != cell[1])
    pairs = sorted(wrong, key=lambda cell: (-len(cells[cell]), cell))[:PAIRS]
    shown = sorted(cells) if predictions.classes <= MOST_NAMED else pairs
    return {
        "cells": cells,
        "pairs": pairs,
        "shown": first_of({cell: cells[cell] for cell in shown}),
        "sheets": mistakes(predictions),
        "labels": predictions.labels,
        "top": predictions.top(2),
        "chances": np.exp(predictions.log_probabilities),
        "confidence": predictions.confidence.mean(),
    }


def wrong_tags(predictions: TagPredictions, thresholds: Floats) -> Json:
    """Return `cells` and `shown`: the mistakes at the `thresholds` (K,), for the page.

    `cells` maps ("wrong", tag) to the indices of its false positives, most probable first, and
    ("missed", tag) to those of its false negatives, least probable first. `shown` has their first
    images, and `chances` the probabilities (N,K). `given` is the number of tags that reach their
    thresholds, and `found` that of the correct ones.
    """
    truth = predictions.truth
    chances = predictions.probabilities
    given = chances >= thresholds
    cells = {}
    for tag in range(len(thresholds)):
        cells["wrong", tag] = highest(chances[:, tag], (given & ~truth)[:, tag], len(truth))
        cells["missed", tag] = highest(-chances[:, tag], (truth & ~given)[:, tag], len(truth))
    return {
        "cells": cells,
        "shown": first_of(cells),
        "chances": chances,
        "given": int(given.sum()),
        "found": int((given & truth).sum()),
    }


def first_of(cells: Mapping[Any, Sequence[int]]) -> dict[Any, Sequence[int]]:
    """Return the first images of each cell, of all cells together about PICTURES."""
    each = max(1, min(EACH, PICTURES // (len(cells) or 1)))
    return {cell: indices[:each] for cell, indices in cells.items()}


def image_as_webp(images: ImageSet, index: int, content: Json) -> bytes:
    """Return an image as WebP data, read from its file below the folder content["root"].

    Without a readable file, return the pixels that the model sees.
    """
    name = images.all_names[index]
    if isinstance(name, str):
        with contextlib.suppress(BrokenImage):
            return photo_webp(Path(content["root"], name), white_level=content["white_level"])
    pixels = images.images[index].permute(1, 2, 0).cpu().numpy()
    return as_webp(Image.fromarray(pixels), PICTURE_SIDE)


def photo_webp(
    path: Path,
    side: int = PICTURE_SIDE,
    max_pixels: int = MAX_PIXELS,
    white_level: int | None = None,
) -> bytes:
    """Return an image file as WebP data, upright, with at most `side` pixels on its longer side.

    `white_level` is as in `upright`. Raise BrokenImage if the file is missing, cannot be decoded,
    or has more than `max_pixels`.
    """
    with opened(path, max_pixels) as image:
        image.draft(None, (2 * side, 2 * side))  # a large JPEG is decoded at a fraction of its size
        return as_webp(upright(image, white_level), side)


def as_webp(image: Image.Image, side: int) -> bytes:
    """Return an image as WebP data, reduced to at most `side` pixels on its longer side."""
    file = BytesIO()
    image.thumbnail((side, side))
    image.save(file, "webp", quality=85)
    return file.getvalue()


def write_workbench(
    path: Path,
    sections: Mapping[str, Sequence[Sequence[Photo]]],
    classes: Sequence[str],
    config: FolderConfig,
    about: str,
) -> None:
    """Write the page on which a user decides on photos, and that saves data.decisions.

    `about` tells how far its cases can be trusted. `sections` maps titles to cases, the most
    important first. A case has one photo, or several to compare. Of cases of which config.decisions
    decides all photos, only list the decisions.
    """
    earlier = read_decisions(config.decisions) if config.decisions else {}

    def is_settled(case: Sequence[Photo]) -> bool:
        return all(cell(name) in earlier for name, *_ in case)

    left = {
        title: [case for case in cases if not is_settled(case)] for title, cases in sections.items()
    }
    settled = {
        name: (why, earlier[cell(name)])
        for case in chain(*sections.values())
        if is_settled(case)
        for name, _, why, _ in case
    }
    shown = {title: cases[:MOST_CASES] for title, cases in left.items() if cases}
    names = dict.fromkeys(name for name, *_ in chain(*chain(*shown.values())))
    place = repr((Path(config.root).resolve(), *names)).encode(errors="surrogateescape")
    page = render(
        "evaluate",
        "workbench.html",
        data=config.title,
        root=config.root,
        about=about,
        sections=shown,
        settled=settled,
        counts={title: len(cases) for title, cases in left.items()},
        pictures={
            name: photo_webp(
                Path(config.root, name), PHOTO_SIDE, config.max_pixels, config.white_level
            )
            for name in names
        },
        cell=cell,
        has_choice=len(classes) > 1,
        script={
            "key": f"vit_train {hashlib.sha256(place).hexdigest()}",
            "columns": COLUMNS,
            "classes": [cell(name) for name in classes],
            "earlier": [[row[column] for column in COLUMNS] for row in earlier.values()],
        },
    )
    write_text(path, page)
    if names:
        logger.info(f"{counted(len(names), 'photo')} to decide on in {path}: open it in a browser")
    else:
        logger.info(f"nothing is left to decide on ({path})")


def cell(text: str) -> str:
    """Return text as in a cell of a run's CSV files, such as a path in IMAGES."""
    return str(plain_cell(printable(text)))
