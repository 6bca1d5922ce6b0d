"""Measure a model on plain, mirrored and corrupted images, and fit its temperature."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean
from typing import Any

import numpy as np

from vit_train.base.log import logger
from vit_train.base.writing import write_json
from vit_train.data.batches import EvalBatches
from vit_train.data.dataset import ImageSet
from vit_train.engine.metrics import Classification, Evaluation, Predictions
from vit_train.engine.objective import evaluate
from vit_train.engine.precision import Precision
from vit_train.engine.workers import make_workers
from vit_train.evaluation.corruptions import CORRUPTIONS, SEVERITIES, corrupted
from vit_train.figures.measures import (
    COLDEST,
    calibration_error,
    class_reports,
    fitted_temperature,
    result_dict,
    result_line,
)
from vit_train.runs.paths import calibration_file
from vit_train.runs.trained import Meta, Trained, noted_temperatures, temperature_key

# A function that evaluates a classifier on a set of images, always in the same way.
Measure = Callable[[ImageSet], Classification]


def measure(trained: Trained, precision: Precision, batch_size: int, images: ImageSet) -> Any:
    """Return a model's Evaluation on a set of images; for a classifier, a Classification."""
    model, meta = trained
    batches = EvalBatches(images, trained.normalize, batch_size, precision.device)
    with make_workers(model, precision, batch_size, most=trained.at_once) as workers:
        return evaluate(model, meta.task, meta.task.eval_loader(batches), precision, workers)


def temperature(
    measure: Measure, meta: Meta, split: str, images: ImageSet | None, note: bool
) -> float | None:
    """Fit the temperature of a classifier on its run's validation `images`.

    Return None if there are no validation images or too few, or if the evaluated `split` is "val".
    With `note`, also write the temperature into the run's folder.
    """
    is_possible = meta.config.data.val == "split" and meta.task.needs_labels
    if images is None or split == "val" or not is_possible:
        return None
    fitted = fitted_temperature(measure(images).predictions)
    if fitted <= COLDEST:
        logger.info(f"no temperature is fitted: too few validation images ({len(images):,})")
        return None
    if note:
        note_temperature(meta, fitted)
    return fitted


def note_temperature(meta: Meta, fitted: float) -> None:
    """Write a checkpoint's temperature to the calibration file that `load` reads."""
    file, noted = calibration_file(meta.path), noted_temperatures(meta.path)
    if noted is None:
        logger.warning(f"the temperature is not saved: {file} is not from vit-eval; move it away")
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)  # a built-in model has no folder yet
        write_json(file, {"temperatures": noted | {temperature_key(meta): fitted}})
    except OSError as error:
        logger.warning(f"the temperature is not saved: {file}: {error.strerror}")


def flipped(measure: Measure, images: ImageSet, plain: Predictions) -> Classification:
    """Evaluate probabilities averaged over each image and its mirror image.

    `plain` are the predictions for the original images.
    """
    mirrored = measure(replace(images, images=images.images.flip(3))).predictions
    both = np.logaddexp(plain.log_probabilities, mirrored.log_probabilities)
    result = Classification.of(Predictions(plain.labels, both - np.log(2)))
    logger.info(f"averaged with mirror images (tta=flip): {result_line(result)}")
    return result


def robustness(measure: Measure, images: ImageSet) -> dict[str, Any]:
    """Return the accuracy on corrupted images, by corruption and severity, and the mean of all."""
    found: dict[str, list[float]] = {}
    for name in CORRUPTIONS:
        pixels = (corrupted(images.images, name, severity) for severity in SEVERITIES)
        found[name] = [measure(replace(images, images=worse)).acc for worse in pixels]
        logger.info(f"{name}: {', '.join(f'{acc:.1%}' for acc in found[name])}")
    return {"mean_acc": mean(map(mean, found.values())), "acc_by_severity": found}


def numbers(
    result: Evaluation, classes: Sequence[str], temperature: float | None
) -> dict[str, Any]:
    """Return a result's metrics by name; with a `temperature`, include the calibrated metrics."""
    content: dict[str, Any] = {"result": result_dict(result)}
    if isinstance(result, Classification):
        content["per_class"], content["averages"] = class_reports(result.predictions, classes)
        if temperature is not None:
            calibrated = Predictions(
                result.predictions.labels, result.predictions.logits / temperature
            )
            content["calibration"] = {
                "ece": calibration_error(result.predictions),
                "temperature": temperature,
                "ece_with_temperature": calibration_error(calibrated),
                "loss_with_temperature": float(calibrated.losses.mean()),
                "fitted_on": "val",
            }
    return content
