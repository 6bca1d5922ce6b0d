"""`vit-predict`: classify image files, and print or write the predictions.

`vit-eval` writes its predictions with the same functions.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import compress
from pathlib import Path

import numpy as np

from vit_train.base.log import logger
from vit_train.base.text import CLASS_NAME, counted, csv_text, printable, shortened
from vit_train.base.writing import replacing
from vit_train.config.tools import PredictConfig
from vit_train.data.decode import warn
from vit_train.data.files import image_files
from vit_train.evaluate.summaries import Json
from vit_train.loop.metrics import Predictions, fewest_trials
from vit_train.loop.tagging import TagPredictions
from vit_train.trained.load import load_on
from vit_train.trained.model import Meta, PredictionOrError

# Number of lines on the terminal if everything also goes to a file.
LINES = 10
# Maximum number of columns for the paths on the terminal; longer paths are not aligned.
PATH_WIDTH = 60
# Number of classes that vit-eval names for each image.
NAMED = 5


def predict_images(config: PredictConfig) -> None:
    """Classify all images, print the predictions, and write them to the file `config.out`, if set.

    Raise ValueError if there are no images, if no image can be read, or if the model cannot
    abstain as `config.abstain` asks.
    """
    trained = load_on(config.ckpt, config.device, config.weights)
    meta = trained.meta
    threshold = least_confidence(config, meta)
    paths = image_files(config.images)
    marks: dict[Path, int] = {}
    predictions = trained.stream(paths, config.topk, config.max_pixels, marks)
    failures: list[str] = []
    unsure = 0
    width = min(PATH_WIDTH, max(len(printable(str(path))) for path in paths))
    out = Path(config.out or os.devnull)
    header, line_of = file_format(config, meta)
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) if config.out else out.open("wb") as file:
        file.write(header.encode())
        for number, (path, prediction) in enumerate(zip(paths, predictions, strict=True)):
            if isinstance(prediction, str):
                failures.append(printable(f"{path}: {prediction}"))
            elif prediction.probability < threshold:
                prediction = replace(prediction, label="")
                unsure += 1
            if config.out is None or number < LINES:
                logger.info(terminal_line(path, prediction, width))
            file.write(line_of(path, prediction).encode())
    warn(marks)
    report(config, len(paths), failures, unsure, threshold)
    logger.info(calibration_line(config.ckpt, meta))


def file_format(
    config: PredictConfig, meta: Meta
) -> tuple[str, Callable[[Path, PredictionOrError], str]]:
    """Return the header of the file `config.out`, and the function that formats a line of it."""
    if config.out is None or Path(config.out).suffix == ".jsonl":
        return "", json_line
    last = min(config.topk, len(meta.classes)) if meta.task.one_class else 0
    guesses = range(2 if config.abstain is None else 1, last + 1)
    header = csv_text([["image", "predicted", "probability", *pair_columns(guesses), "error"]])
    return header, partial(csv_line, guesses=guesses)


def report(
    config: PredictConfig, count: int, failures: Sequence[str], unsure: int, threshold: float
) -> None:
    """Log a summary of the predictions for `count` images; raise ValueError if all failed."""
    if len(failures) == count:
        raise ValueError(f"cannot read any of the images: {failures[0]}")
    images = counted(count - len(failures), "image")
    if config.abstain is not None:
        logger.info(f"unsure: {unsure:,} of {images}, with a confidence below {threshold:.2%}")
    if config.out is not None:
        logger.info(f"predictions for {images} written to {config.out}")
    if failures:
        logger.warning(
            f"{len(failures):,} of {count:,} images cannot be read (the first: {failures[0]})"
        )


def least_confidence(config: PredictConfig, meta: Meta) -> float:
    """Return the confidence threshold that vit-eval found for `config.abstain`; 0 if it is None.

    Raise ValueError if the model is not calibrated, or if no threshold reached this accuracy.
    """
    if config.abstain is None:
        return 0.0
    if not meta.task.one_class:
        raise ValueError(f"abstain= is for classifiers, not for task={meta.config.task.name}")
    if not meta.thresholds:
        raise ValueError(
            f"abstain={config.abstain} needs a calibrated model: "
            f"{meta.calibration_advice(config.ckpt)}"
        )
    threshold = meta.thresholds.get(str(config.abstain))
    if threshold is None:
        reached = [target for target, least in meta.thresholds.items() if least is not None]
        raise ValueError(
            f"abstain={config.abstain} is not available: on the validation images, no threshold "
            f"reached this accuracy with 95 % certainty (reached: {', '.join(reached) or 'none'}); "
            f"this needs at least {fewest_trials(config.abstain)} validation images and hardly a "
            "mistake where the model is most confident: add images, or train a better model"
        )
    return threshold


def calibration_line(ckpt: str, meta: Meta) -> str:
    """Return a note on the model's calibration or, for tags, on the origin of its thresholds."""
    advice = meta.calibration_advice(ckpt)
    if meta.task.one_class and meta.temperature is None:
        return f"probabilities are not calibrated: {advice}"
    if meta.task.one_class:
        return f"probabilities are calibrated with a temperature of {meta.temperature:.3g}"
    chosen = "chosen on the run's validation images"
    return f"thresholds of the tags: {chosen if meta.thresholds else f'0.5 for all tags; {advice}'}"


def terminal_line(path: Path, prediction: PredictionOrError, width: int) -> str:
    """Format the prediction for a file as a line for the terminal.

    An unsure prediction has the label "".
    """
    name = printable(str(path))
    if isinstance(prediction, str):
        return f"{name:<{width}}  cannot be read: {printable(prediction)}"
    classes = (f"{shortened(label, CLASS_NAME)} {chance:.1%}" for label, chance in prediction.top)
    unsure = "" if prediction.label else "unsure: " if prediction.top else "no tag"
    return f"{name:<{width}}  {unsure}{'  '.join(classes)}"


def csv_line(path: Path, prediction: PredictionOrError, guesses: range) -> str:
    """Return a row of the CSV file; `guesses` are the ranks, from 1, of the classes to list."""
    if isinstance(prediction, str):
        cells = [*[""] * (2 + 2 * len(guesses)), prediction]
    else:
        # Without guesses, the label has all names in `top`: one class, or any number of tags.
        chances = "|".join(f"{chance:.6f}" for _, chance in prediction.top)
        probability = f"{prediction.probability:.6f}" if guesses else chances
        listed = (prediction.top[place - 1] for place in guesses)
        cells = [prediction.label, probability, *pair_cells(listed), ""]
    return csv_text([map(printable, (str(path), *cells))])


def json_line(path: Path, prediction: PredictionOrError) -> str:
    content: Json = {"image": printable(str(path))}
    if isinstance(prediction, str):
        content["error"] = printable(prediction)
    else:
        content |= {
            "predicted": prediction.label or None,
            "probability": round(prediction.probability, 6),
            "top": [[label, round(chance, 6)] for label, chance in prediction.top],
        }
    return json.dumps(content, allow_nan=False) + "\n"


def pair_columns(marks: Iterable[object]) -> list[str]:
    """Return the titles of the columns with a class and its probability, for each of `marks`."""
    return [f"{title}_{mark}" for mark in marks for title in ("predicted", "probability")]


def pair_cells(pairs: Iterable[tuple[str, float]]) -> list[str]:
    return [cell for name, chance in pairs for cell in (printable(name), f"{chance:.6f}")]


def class_rows(
    predictions: Predictions, names: Sequence[object], classes: Sequence[str]
) -> Iterator[list[object]]:
    """Yield the rows of vit-eval's predictions.csv: a header, then a row for each image.

    The columns are the image's name, its true class, its predicted class, whether the prediction is
    correct, the probabilities of the predicted and the true class, and the next most probable
    classes with their probabilities.
    """
    top = predictions.top(NAMED)
    more = pair_columns(range(2, top.shape[1] + 1))
    yield ["image", "true", "predicted", "correct", "probability", "true_probability", *more]
    for name, label, best, chances in zip(
        names, predictions.labels, top, np.exp(predictions.log_probabilities), strict=True
    ):
        found = [(classes[each], chances[each]) for each in (best[0], label, *best[1:])]
        predicted, chance, true, true_chance, *others = pair_cells(found)
        correct = int(best[0] == label)
        yield [printable(str(name)), true, predicted, correct, chance, true_chance, *others]


def tag_rows(
    predictions: TagPredictions, names: Sequence[object], per_tag: Sequence[Json]
) -> Iterator[list[object]]:
    """Yield the rows of vit-eval's predictions.csv: a header, then a row for each image.

    The columns are the image's name, its true tags, the tags that reach their thresholds, and the
    probability of each tag.
    """
    tags = [printable(each["name"]) for each in per_tag]
    chances = predictions.probabilities
    predicted = chances >= [each["threshold"] for each in per_tag]
    yield ["image", "true", "predicted", *(f"probability of {tag}" for tag in tags)]
    for name, *has, values in zip(names, predictions.truth, predicted, chances, strict=True):
        both = ("|".join(compress(tags, each)) for each in has)
        yield [printable(str(name)), *both, *map("{:.6f}".format, values)]
