"""`vit-predict`: classify image files, and print or write the predictions."""

import json
import os
import shlex
from itertools import chain
from pathlib import Path

from vit_train.base.log import logger
from vit_train.base.text import CLASS_NAME, counted, csv_text, printable, shortened
from vit_train.base.writing import replacing
from vit_train.data.decode import Doubts
from vit_train.data.image_files import image_files
from vit_train.engine.precision import keep_freed_memory, pick_device
from vit_train.runs.settings import PredictConfig
from vit_train.runs.trained import Meta, PredictionOrError, load

# Number of lines on the terminal if everything also goes to a file.
SHOWN = 10
# Maximum number of columns for the paths on the terminal; longer paths are not aligned.
WIDTH = 60


def predict_images(config: PredictConfig) -> None:
    """Classify all images, print the predictions, and write them to the file `config.out`, if set.

    Raise ValueError if there are no images, or if no image can be read.
    """
    keep_freed_memory()
    trained = load(config.ckpt, pick_device(config.device), config.weights)
    paths, doubts = image_files(config.images), Doubts()
    predictions = trained.stream(paths, config.topk, config.max_pixels, doubts)
    failures: list[str] = []
    width = min(WIDTH, max(len(printable(str(path))) for path in paths))
    topk = min(config.topk, len(trained.meta.classes))
    out = Path(config.out or os.devnull)
    is_json = out.suffix == ".jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(out) if config.out else out.open("wb") as file:
        file.write(b"" if is_json else csv_header(topk).encode())
        for number, (path, prediction) in enumerate(zip(paths, predictions, strict=True)):
            line = json_line(path, prediction) if is_json else csv_line(path, prediction, topk)
            file.write(line.encode())
            if isinstance(prediction, str):
                failures.append(prediction)
            if config.out is None or number < SHOWN:
                logger.info(terminal_line(path, prediction, width))
    if len(failures) == len(paths):
        raise ValueError(f"none of the images can be read: {failures[0]}")
    doubts.warn()
    report(config, len(paths), len(failures), trained.meta)


def terminal_line(path: Path, prediction: PredictionOrError, width: int) -> str:
    """Format the prediction for a file as a line for the terminal."""
    name = printable(str(path))
    if isinstance(prediction, str):
        return f"{name:<{width}}  cannot be read: {printable(prediction)}"
    classes = (f"{shortened(label, CLASS_NAME)} {chance:.1%}" for label, chance in prediction.top)
    return f"{name:<{width}}  {'  '.join(classes)}"


def csv_header(topk: int) -> str:
    places = ((f"predicted_{place}", f"probability_{place}") for place in range(2, topk + 1))
    return csv_text([["image", "predicted", "probability", *chain(*places), "error"]])


def csv_line(path: Path, prediction: PredictionOrError, topk: int) -> str:
    if isinstance(prediction, str):
        cells = [""] * (2 * topk) + [printable(prediction)]
    else:
        pairs = ([printable(label), f"{chance:.6f}"] for label, chance in prediction.top)
        cells = [*chain(*pairs), ""]
    return csv_text([[printable(str(path)), *cells]])


def json_line(path: Path, prediction: PredictionOrError) -> str:
    content: dict[str, object] = {"image": printable(str(path))}
    if isinstance(prediction, str):
        content["error"] = printable(prediction)
    else:
        top = [[label, round(chance, 6)] for label, chance in prediction.top]
        content |= {"predicted": top[0][0], "probability": top[0][1], "top": top}
    return json.dumps(content, allow_nan=False) + "\n"


def report(config: PredictConfig, count: int, failures: int, meta: Meta) -> None:
    """Log the output file, the unreadable images, and whether the probabilities are calibrated."""
    if config.out is not None:
        logger.info(f"predictions for {counted(count, 'image')} written to {config.out}")
    if failures:
        logger.warning(f"{failures:,} of {count:,} images cannot be read")
    if meta.temperature is not None:
        logger.info(f"probabilities are calibrated with a temperature of {meta.temperature:.2f}")
    elif meta.config.data.val == "split":
        logger.info(
            "probabilities are not calibrated: to calibrate them on the run's validation images, "
            f"run: vit-eval {shlex.quote(f'ckpt={config.ckpt}')} weights={config.weights}"
        )
    else:
        logger.info("probabilities are not calibrated: the run held out no validation images")
