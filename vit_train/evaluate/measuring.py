"""Measure a model on plain, mirrored, corrupted and foreign images, and calibrate it."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from vit_train.base.log import logger
from vit_train.base.text import CLASS_NAME, counted, shortened
from vit_train.base.writing import write_json
from vit_train.config.tools import TARGETS
from vit_train.data.batches import EvalBatches
from vit_train.data.dataset import ImageSet
from vit_train.evaluate.corruptions import CORRUPTIONS, SEVERITIES, corrupted
from vit_train.evaluate.summaries import Json, value_at
from vit_train.figures.measures import (
    calibration_error,
    class_reports,
    result_dict,
    result_line,
)
from vit_train.loop.device import Precision
from vit_train.loop.metrics import (
    ALPHA,
    Classification,
    Evaluation,
    Floats,
    Predictions,
    binomial_tail,
    fewest_trials,
    log_softmax,
    lower_bound,
    of_label,
)
from vit_train.loop.objective import evaluate
from vit_train.loop.tagging import THRESHOLD, Tagging, TagPredictions, average_f1, f1
from vit_train.loop.workers import make_workers
from vit_train.trained.folder import calibration_file
from vit_train.trained.load import saved_calibration
from vit_train.trained.model import Meta, Prediction, Trained


def measure(
    trained: Trained,
    images: ImageSet,
    precision: Precision | None = None,
    batch_size: int | None = None,
    mirrored: bool = False,
) -> Any:
    """Return a model's Evaluation on a set of images; for a classifier, a Classification.

    `precision` and `batch_size` replace those of the run. `mirrored` mirrors each image left to
    right.
    """
    model, meta = trained
    precision = precision or trained.precision
    batch_size = min(batch_size or meta.config.train.eval_batch_size, trained.at_once)
    plain = EvalBatches(images, trained.normalize, batch_size, precision.device)
    batches = meta.task.eval_loader(plain)
    if mirrored:
        batches = ((pixels.flip(3), targets) for pixels, targets in batches)
    with make_workers(model, precision, batch_size, most=trained.at_once) as workers:
        return evaluate(model, meta.task, batches, precision, workers)


def measures(result: Evaluation, validation: Any, split: str, meta: Meta) -> Json:
    """Return all measures of a result, and print those of each class or tag.

    `validation` are the predictions for validation images, on which the temperature and the
    thresholds are chosen, or None.
    """
    content: Json = {"result": result_dict(result)}
    if isinstance(result, Tagging):
        # The model's own thresholds were chosen on the validation images.
        own = np.full(len(meta.classes), THRESHOLD) if split == "val" else meta.tag_thresholds
        thresholds = own if validation is None else validation.best_thresholds
        content |= tag_measures(result.predictions, meta.classes, thresholds)
        logger.info(tag_table(content["per_tag"]))
    elif isinstance(result, Classification):
        content["per_class"], content["averages"] = class_reports(result.predictions, meta.classes)
        logger.info(class_table(content["per_class"]))
        if validation is not None:
            fitted = temperature(validation)
            if fitted is not None:
                content["calibration"] = calibration(result.predictions, fitted)
            calibrated = result.predictions.calibrated(fitted)
            content["abstention"] = abstention(validation.calibrated(fitted), calibrated, split)
    return content


def calibration(plain: Predictions, temperature: float) -> Json:
    """Return the measures that a temperature, fitted on validation images, changes."""
    calibrated = plain.calibrated(temperature)
    return {
        "temperature": temperature,
        "ece_with_temperature": calibration_error(calibrated),
        "loss_with_temperature": float(calibrated.losses.mean()),
    }


# The range of temperatures, relative to the mean distance of an image's highest logit from its mean
# logit. A lower temperature means that nearly all predictions are correct; a higher one, that the
# logits are meaningless.
COLDEST = 0.02
HOTTEST = 10.0


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

    low = 1 / HOTTEST
    high = 1 / COLDEST
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


def choose_threshold(predictions: Predictions, target: float) -> float | None:
    """Choose the lowest confidence threshold with an accuracy of at least `target`.

    The accuracy is that on new images like these, with 95 % certainty (selective classification,
    Geifman & El-Yaniv 2017). Thresholds are tried in a fixed order, highest first, until the lower
    bound of the accuracy is below `target`; because the order is fixed, no correction for multiple
    tests is needed. The first threshold keeps the share TRIED[0] of the images, or more if even a
    flawless result on so few images could not pass. With fewer images, a single mistake would end
    the search. Return None if no threshold passes.
    """
    surest = np.sort(predictions.confidence)[::-1]
    fewest = fewest_trials(target)
    chosen = None
    for count in np.ceil(TRIED * len(surest)).astype(int):
        if count >= fewest:
            threshold = float(surest[count - 1])
            kept, correct = kept_and_correct(predictions, threshold)
            if binomial_tail(correct, kept, target) > ALPHA:
                break
            chosen = threshold
    return chosen


def abstention(validation: Predictions, evaluated: Predictions, split: str) -> list[Json]:
    """Choose thresholds on validation images; report coverage and accuracy on both sets.

    Return a row for each of TARGETS: the `target`, its `threshold`, and the results for "val" and
    for `split`. For a target that is not reached, the threshold and the results are None.
    """
    rows = []
    for target in TARGETS:
        threshold = choose_threshold(validation, target)
        row: Json = {"target": target, "threshold": threshold}
        for name, predictions in (("val", validation), (split, evaluated)):
            row[name] = None if threshold is None else answered(predictions, threshold)
        rows.append(row)
    return rows


def answered(predictions: Predictions, threshold: float) -> Json:
    """Return the coverage at a confidence threshold, and the accuracy on the covered images.

    Also return the lower 95 % bound of this accuracy.
    """
    count, correct = kept_and_correct(predictions, threshold)
    return {
        "share": count / len(predictions.labels),
        "acc": correct / count if count else None,
        "acc_lower_95": lower_bound(correct, count),
    }


def save_calibration(meta: Meta, content: Json) -> bool:
    """Write a checkpoint's temperature and thresholds to the calibration file that `load` reads.

    Both are taken from the `content` of results.json. Return True on success.
    """
    file = calibration_file(meta.path)
    noted = saved_calibration(meta.path)
    if noted is None:
        logger.warning(f"the calibration is not saved: {file} is not from vit-eval; remove it")
        return False
    noted.temperatures[meta.key] = value_at(content, "calibration", "temperature")
    rows = content.get("abstention", []) + content.get("per_tag", [])
    noted.thresholds[meta.key] = {
        str(row.get("name", row.get("target"))): row["threshold"] for row in rows
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)  # a built-in model has no folder yet
        write_json(file, asdict(noted))
    except OSError as error:
        logger.warning(f"the calibration is not saved: {file}: {error.strerror}")
        return False
    return True


def averaged(plain: Predictions, mirrored: Predictions) -> Classification:
    """Return the result of averaging the probabilities of each image and its mirror image."""
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


def robustness(measure: Callable[[ImageSet], Classification], images: ImageSet) -> Json:
    """Return the accuracy on corrupted images, by corruption and severity, and the mean of all."""
    accuracies = {}
    for name in CORRUPTIONS:
        accuracies[name] = [
            measure(replace(images, images=corrupted(images.images, name, severity))).acc
            for severity in SEVERITIES
        ]
        logger.info(f"{name}: {', '.join(f'{acc:.1%}' for acc in accuracies[name])}")
    return {"mean_acc": mean(map(mean, accuracies.values())), "acc_by_severity": accuracies}


def foreign(
    trained: Trained, precision: Precision, files: Sequence[Path], own: Predictions, content: Json
) -> Json:
    """Measure how well the confidence tells foreign images from the evaluated ones, as AUROC.

    Also return, for each threshold for abstaining, the share of foreign images whose confidence
    reaches it. `own` are the predictions for the evaluated images. `content` is the content of
    results.json; its temperature applies to all images. Raise ValueError if none of the files can
    be read.
    """
    fitted = value_at(content, "calibration", "temperature")
    config = replace(trained.meta.config, precision=precision.name)
    same = trained._replace(meta=replace(trained.meta, temperature=fitted, config=config))
    read = [each for each in same.stream(files, topk=1) if isinstance(each, Prediction)]
    if not read:
        raise ValueError(f"cannot read any of the foreign images (the first: {files[0]})")
    found = np.array([each.probability for each in read])
    score = auroc(own.calibrated(fitted).confidence, found)
    logger.info(f"foreign images: {len(read):,} of {len(files):,} read, AUROC {score:.3f}")
    predicted = {
        str(row["target"]): float((found >= row["threshold"]).mean())
        for row in content.get("abstention", [])
        if row["threshold"] is not None
    }
    return {"images": len(read), "auroc": score, "predicted": predicted}


def tag_measures(predictions: TagPredictions, classes: Sequence[str], thresholds: Floats) -> Json:
    """Return the measures of each tag, and the averages of F1, at the `thresholds` (K,).

    The average precision of a tag that no image has is NaN; `support` is its number of images.
    """
    counts = predictions.counts(thresholds)
    columns = {
        "support": predictions.truth.sum(axis=0),
        "average_precision": predictions.average_precisions,
        "f1": f1(counts),
        "f1_interval_95": predictions.f1_intervals(thresholds),
        "threshold": thresholds,
    }
    rows = zip(classes, *(column.tolist() for column in columns.values()), strict=True)
    per_tag = [dict(zip(("name", *columns), row, strict=True)) for row in rows]
    return {"per_tag": per_tag, "at_thresholds": average_f1(counts)}


def class_table(per_class: Sequence[Json]) -> str:
    """Format one line per class: its name, accuracy, bar, and number of correct images."""
    return by_name(
        per_class,
        lambda each: (
            f"{each['recall']:7.2%}  {'█' * round(20 * each['recall']):<20}  "
            f"{round(each['recall'] * each['support']):5d} of {each['support']}"
        ),
    )


def tag_table(per_tag: Sequence[Json]) -> str:
    """Format one line per tag: its name, measures and number of images."""
    line = (
        "average precision {average_precision:7.2%}  F1 {f1:.3f} at {threshold:.3f}  "
        "{support:5d} images"
    )
    return by_name(per_tag, line.format_map)


def by_name(rows: Sequence[Json], line: Callable[[Json], str]) -> str:
    """Format one line per class or tag: its name, then the text that `line` makes of its row."""
    names = [shortened(row["name"], CLASS_NAME) for row in rows]
    width = max(map(len, names))
    return "\n".join(
        f"  {name:<{width}}  {line(row) if row['support'] else 'no images'}"
        for name, row in zip(names, rows, strict=True)
    )
