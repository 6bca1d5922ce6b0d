"""Measure a model on plain, mirrored, corrupted and foreign images, and calibrate it."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import compress, takewhile
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from vit_train.base.log import logger
from vit_train.base.text import CLASS_NAME, counted, printable, shortened
from vit_train.base.writing import write_json
from vit_train.config.tools import TARGETS
from vit_train.data.batches import EvalBatches
from vit_train.data.dataset import ImageSet
from vit_train.evaluate.corruptions import CORRUPTIONS, SEVERITIES, corrupted
from vit_train.figures.measures import calibration_error, class_reports, result_dict, result_line
from vit_train.loop.metrics import (
    ALPHA,
    Classification,
    Evaluation,
    Floats,
    Predictions,
    binomial_tail,
    log_softmax,
    lower_bound,
    of_label,
)
from vit_train.loop.objective import evaluate
from vit_train.loop.precision import Precision
from vit_train.loop.tagging import TagPredictions, average_f1, f1
from vit_train.loop.workers import make_workers
from vit_train.trained.folder import calibration_file
from vit_train.trained.load import saved_calibration
from vit_train.trained.model import Meta, Prediction, Trained

# A function that evaluates a classifier on a set of images, always in the same way.
Measure = Callable[[ImageSet], Classification]


def measure(trained: Trained, precision: Precision, batch_size: int, images: ImageSet) -> Any:
    """Return a model's Evaluation on a set of images; for a classifier, a Classification."""
    model, meta = trained
    batches = EvalBatches(images, trained.normalize, batch_size, precision.device)
    with make_workers(model, precision, batch_size, most=trained.at_once) as workers:
        return evaluate(model, meta.task, meta.task.eval_loader(batches), precision, workers)


# The range of temperatures, relative to the mean distance of an image's highest logit from its mean
# logit. Below it, nearly all predictions are correct; above it, the logits are meaningless.
COLDEST, HOTTEST = 0.02, 10.0


def temperature(validation: Predictions) -> float | None:
    """Return the temperature T for which softmax(logits / T) has the least cross-entropy.

    Temperature scaling is from Guo et al. 2017. The cross-entropy is convex in 1/T, so bisection
    finds the zero of its derivative: the mean difference between the expected logit and the label's
    logit. T is relative to the size of the logits, because an untrained model's are small. Return
    None if it is below COLDEST.
    """
    logits = validation.logits
    size = float((logits.max(axis=1) - logits.mean(axis=1)).mean()) or 1.0  # 0: all are equal
    above = (logits - of_label(logits, validation.labels)[:, np.newaxis]) / size

    def slope(inverse: float) -> float:
        return float((np.exp(log_softmax(inverse * above)) * above).sum(axis=1).mean())

    low, high = 1 / HOTTEST, 1 / COLDEST
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    if 1 / high <= COLDEST:
        logger.info(
            f"no temperature is fitted: {validation.correct.sum():,} of the "
            f"{counted(len(validation.labels), 'validation image')} are classified correctly, "
            "which leaves too few mistakes"
        )
        return None
    return size * min(1 / high, HOTTEST)


# The thresholds to try, each given by the share of the images that it keeps, in this order.
TRIED = np.linspace(0.25, 1, 76)


def kept_and_correct(predictions: Predictions, threshold: float) -> tuple[int, int]:
    """Count the images with at least this confidence, and the correct predictions for them."""
    kept = predictions.correct[predictions.confidence >= threshold]
    return len(kept), int(kept.sum())


def choose_threshold(predictions: Predictions, target: float) -> tuple[float, bool]:
    """Choose the lowest confidence threshold at which `target` of the predictions are correct.

    With 95 % certainty, at least this share is also correct on new images like these (selective
    classification, Geifman & El-Yaniv 2017). Thresholds are tried in a fixed order, highest first,
    until the lower bound of the accuracy is below `target`; because the order is fixed, no
    correction for multiple tests is needed. The first threshold keeps the share TRIED[0] of the
    images, or more if even a flawless result on so few images could not pass. With fewer images, a
    single mistake would end the search.

    Return the threshold and True or, if no threshold passes, the first one and False.
    """
    surest = np.sort(predictions.confidence)[::-1]
    fewest = math.log(ALPHA) / math.log(target)
    counts = [count for count in np.ceil(TRIED * len(surest)).astype(int) if count >= fewest]
    tried = [float(surest[count - 1]) for count in counts or [len(surest)]]

    def passes(threshold: float) -> bool:
        count, correct = kept_and_correct(predictions, threshold)
        return binomial_tail(correct, count, target) <= ALPHA

    passed = list(takewhile(passes, tried))
    return (passed[-1], True) if passed else (tried[0], False)


def abstention(validation: Predictions, evaluated: Predictions, split: str) -> list[dict[str, Any]]:
    """Choose thresholds on validation images; report coverage and accuracy on both sets.

    Return a row for each of TARGETS: the `target`, its `threshold`, and the results for "val" and
    for `split`. For a target that is not reached, `threshold` and `split` are None, and "val" has
    the results for the first threshold tried.
    """
    rows = []
    for target in TARGETS:
        threshold, passes = choose_threshold(validation, target)
        row = {
            "target": target,
            "threshold": threshold,
            "val": answered(validation, threshold),
            split: answered(evaluated, threshold),
        }
        rows.append(row if passes else row | {"threshold": None, split: None})
    return rows


def answered(predictions: Predictions, threshold: float) -> dict[str, float | None]:
    """Return the coverage at a threshold of the confidence, and the accuracy there.

    The accuracy is that of the covered images; its lower bound has a certainty of 95 %.
    """
    count, correct = kept_and_correct(predictions, threshold)
    return {
        "share": count / len(predictions.labels),
        "acc": correct / count if count else None,
        "acc_lower_95": lower_bound(correct, count),
    }


def save_calibration(meta: Meta, content: dict[str, Any]) -> None:
    """Write a checkpoint's temperature and thresholds to the calibration file that `load` reads.

    Both are taken from the `content` of results.json.
    """
    file, noted, key = calibration_file(meta.path), saved_calibration(meta.path), meta.key
    if noted is None:
        logger.warning(f"the calibration is not saved: {file} is not from vit-eval; remove it")
        return
    noted.temperatures[key] = content.get("calibration", {}).get("temperature")
    noted.thresholds[key] = {
        str(row[column]): row["threshold"]
        for table, column in (("abstention", "target"), ("per_tag", "name"))
        for row in content.get(table, [])
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)  # a built-in model has no folder yet
        write_json(file, asdict(noted))
    except OSError as error:
        logger.warning(f"the calibration is not saved: {file}: {error.strerror}")


def flipped(measure: Measure, images: ImageSet, plain: Predictions) -> Classification:
    """Evaluate probabilities averaged over each image and its mirror image.

    `plain` are the predictions for the original images.
    """
    mirrored = measure(replace(images, images=images.images.flip(3))).predictions
    both = np.logaddexp(plain.log_probabilities, mirrored.log_probabilities)
    result = Classification.of(Predictions(plain.labels, both - np.log(2)))
    logger.info(f"averaged with mirror images (tta=flip): {result_line(result)}")
    return result


def auroc(own: Floats, others: Floats) -> float:
    """Return the share of pairs in which the first value is higher; equal values count as half.

    Each value of `own` (N,) is paired with each of `others` (M,).
    """
    ordered = np.sort(others)
    lower, at_most = (np.searchsorted(ordered, own, side) for side in ("left", "right"))
    return float((lower + at_most).mean()) / 2 / len(ordered)


def robustness(measure: Measure, images: ImageSet, plain: Predictions) -> dict[str, Any]:
    """Return the accuracy on corrupted images, by corruption and severity, and the mean of all.

    Likewise, return the AUROC of telling them from the original images by confidence; `plain` are
    the predictions for the original images.
    """
    found: dict[str, list[float]] = {}
    told: dict[str, list[float]] = {}
    for name in CORRUPTIONS:
        pixels = (corrupted(images.images, name, severity) for severity in SEVERITIES)
        results = [measure(replace(images, images=worse)) for worse in pixels]
        found[name] = [each.acc for each in results]
        told[name] = [auroc(plain.confidence, each.predictions.confidence) for each in results]
        logger.info(f"{name}: {', '.join(f'{acc:.1%}' for acc in found[name])}")
    return {
        "mean_acc": mean(map(mean, found.values())),
        "acc_by_severity": found,
        "mean_auroc": mean(map(mean, told.values())),
        "auroc_by_severity": told,
    }


def foreign(
    trained: Trained, files: Sequence[Path], own: Predictions, rows: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return the AUROC of telling foreign images from others by the model's confidence.

    `own` are the predictions for the others, with the temperature of `trained`. Also return the
    share of foreign images whose confidence reaches the threshold, for each of the `rows` of
    `abstention` that has one. Raise ValueError if none of the files can be read.
    """
    predictions = (each for each in trained.stream(files, topk=1) if isinstance(each, Prediction))
    found = np.array([each.probability for each in predictions])
    if not len(found):
        raise ValueError(f"cannot read any of the foreign images (the first: {files[0]})")
    score = auroc(own.confidence, found)
    logger.info(f"foreign images: {len(found):,} of {len(files):,} read, AUROC {score:.3f}")
    predicted = {
        str(row["target"]): float((found >= row["threshold"]).mean())
        for row in rows
        if row["threshold"] is not None
    }
    return {"images": len(found), "auroc": score, "predicted": predicted}


def numbers(
    result: Evaluation, classes: Sequence[str], temperature: float | None
) -> dict[str, Any]:
    """Return a result's metrics by name; with a `temperature`, include the calibrated metrics."""
    content: dict[str, Any] = {"result": result_dict(result)}
    if isinstance(result, Classification):
        content["per_class"], content["averages"] = class_reports(result.predictions, classes)
        if temperature is not None:
            calibrated = result.predictions.calibrated(temperature)
            content["calibration"] = {
                "ece": calibration_error(result.predictions),
                "temperature": temperature,
                "ece_with_temperature": calibration_error(calibrated),
                "loss_with_temperature": float(calibrated.losses.mean()),
                "fitted_on": "val",
            }
    return content


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
