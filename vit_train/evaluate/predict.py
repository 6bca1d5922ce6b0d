"""`vit-predict`: classify image files, and print or write the predictions."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from vit_train.base.log import logger
from vit_train.base.text import CLASS_NAME, counted, csv_text, printable, shortened
from vit_train.base.writing import replacing
from vit_train.config.tools import PredictConfig
from vit_train.data.decode import Doubts
from vit_train.data.image_files import image_files
from vit_train.trained.load import load_on
from vit_train.trained.model import Meta, PredictionOrError

# Number of lines on the terminal if everything also goes to a file.
SHOWN = 10
# Maximum number of columns for the paths on the terminal; longer paths are not aligned.
WIDTH = 60


def predict_images(config: PredictConfig) -> None:
    """Classify all images, print the predictions, and write them to the file `config.out`, if set.

    Raise ValueError if there are no images, if no image can be read, or if the model cannot
    abstain as `config.abstain` asks.
    """
    trained = load_on(config.ckpt, config.device, config.weights)
    threshold = least_confidence(config, trained.meta)
    paths, doubts = image_files(config.images), Doubts()
    predictions = trained.stream(paths, config.topk, config.max_pixels, doubts)
    failures: list[str] = []
    unsure = 0
    width = min(WIDTH, max(map(len, map(printable, map(str, paths)))))
    last = min(config.topk, len(trained.meta.classes)) if trained.meta.task.one_class else 0
    guesses = range(2 if config.abstain is None else 1, last + 1)
    out = Path(config.out or os.devnull)
    is_json = out.suffix == ".jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) if config.out else out.open("wb") as file:
        file.write(b"" if is_json else csv_header(guesses).encode())
        for number, (path, prediction) in enumerate(zip(paths, predictions, strict=True)):
            if isinstance(prediction, str):
                failures.append(prediction)
            elif prediction.probability < threshold:
                prediction, unsure = replace(prediction, label=""), unsure + 1
            line = json_line(path, prediction) if is_json else csv_line(path, prediction, guesses)
            file.write(line.encode())
            if config.out is None or number < SHOWN:
                logger.info(terminal_line(path, prediction, width))
    doubts.warn()
    report(config, len(paths), failures, unsure, threshold, trained.meta)


def least_confidence(config: PredictConfig, meta: Meta) -> float:
    """Return the least confidence of an answer: vit-eval's threshold for `config.abstain`, or 0.

    Raise ValueError if the threshold is unknown, or if there is none for this accuracy.
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
            f"reached this accuracy with 95 % certainty (reached: {', '.join(reached) or 'none'})"
        )
    return threshold


def terminal_line(path: Path, prediction: PredictionOrError, width: int) -> str:
    """Format the prediction for a file as a line for the terminal; its label is "" if unsure."""
    name = printable(str(path))
    if isinstance(prediction, str):
        return f"{name:<{width}}  cannot be read: {printable(prediction)}"
    classes = (f"{shortened(label, CLASS_NAME)} {chance:.1%}" for label, chance in prediction.top)
    unsure = "" if prediction.label else "unsure: " if prediction.top else "no tag"
    return f"{name:<{width}}  {unsure}{'  '.join(classes)}"


def csv_header(guesses: range) -> str:
    """Return the header of the CSV file.

    `guesses` are the places of the listed classes after the first or, for tags, none.
    """
    places = ((f"predicted_{place}", f"probability_{place}") for place in guesses)
    return csv_text([["image", "predicted", "probability", *chain(*places), "error"]])


def csv_line(path: Path, prediction: PredictionOrError, guesses: range) -> str:
    if isinstance(prediction, str):
        cells = [""] * (2 + 2 * len(guesses)) + [printable(prediction)]
    else:
        listed = [prediction.top[place - 1] for place in guesses]
        # Without guesses, the label has all names in `top`: one class, or any number of tags.
        chances = [prediction.probability] if guesses else [chance for _, chance in prediction.top]
        pairs = ([printable(label), f"{chance:.6f}"] for label, chance in listed)
        first = printable(prediction.label), "|".join(map("{:.6f}".format, chances))
        cells = [*first, *chain(*pairs), ""]
    return csv_text([[printable(str(path)), *cells]])


def json_line(path: Path, prediction: PredictionOrError) -> str:
    content: dict[str, object] = {"image": printable(str(path))}
    if isinstance(prediction, str):
        content["error"] = printable(prediction)
    else:
        content |= {
            "predicted": prediction.label or None,
            "probability": round(prediction.probability, 6),
            "top": [[label, round(chance, 6)] for label, chance in prediction.top],
        }
    return json.dumps(content, allow_nan=False) + "\n"


def report(
    config: PredictConfig,
    count: int,
    failures: Sequence[str],
    unsure: int,
    threshold: float,
    meta: Meta,
) -> None:
    """Log what was predicted of `count` images, and whether the model is calibrated.

    Raise ValueError if no image could be read.
    """
    if len(failures) == count:
        raise ValueError(f"cannot read any of the images: {failures[0]}")
    if config.abstain is not None:
        logger.info(
            f"unsure: {unsure:,} of {counted(count, 'image')}, with a confidence below "
            f"{threshold:.2%}"
        )
    if config.out is not None:
        logger.info(f"predictions for {counted(count, 'image')} written to {config.out}")
    if failures:
        logger.warning(f"{len(failures):,} of {count:,} images cannot be read")
    if not meta.task.one_class:
        chosen = "chosen on the run's validation images"
        advice = "0.5 for all tags; " + meta.calibration_advice(config.ckpt)
        logger.info(f"thresholds of the tags: {chosen if meta.thresholds else advice}")
    elif meta.temperature is not None:
        logger.info(f"probabilities are calibrated with a temperature of {meta.temperature:.3g}")
    else:
        logger.info(f"probabilities are not calibrated: {meta.calibration_advice(config.ckpt)}")
