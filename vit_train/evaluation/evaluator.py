"""A loaded model on sets of images: plain, mirrored, corrupted; and its temperature."""

import logging
from dataclasses import replace

import numpy as np

from vit_train.data.batches import EvalBatches
from vit_train.data.corruptions import CORRUPTIONS, SEVERITIES, corrupted
from vit_train.data.dataset import ImageSet
from vit_train.engine.metrics import Answers, Classification, Evaluation
from vit_train.engine.objective import evaluate
from vit_train.engine.precision import Precision
from vit_train.engine.workers import make_workers
from vit_train.figures.confidence import COLDEST, fitted_temperature
from vit_train.figures.measures import result_line
from vit_train.files.memory import require_memory
from vit_train.files.text import counted
from vit_train.files.writing import write_json
from vit_train.runs.load import noted_temperatures, temperature_key
from vit_train.runs.paths import calibration_file
from vit_train.runs.trained import Meta, Trained

logger = logging.getLogger(__name__)

# Of an image and a class: the logit and its log-softmax in float64, and what sorting them takes.
ANSWER_BYTES = 40


class Evaluator:
    """Evaluates a loaded model on sets of images, always in the same way."""

    def __init__(self, trained: Trained, precision: Precision, batch_size: int) -> None:
        self.model, self.meta = trained
        self.precision, self.batch_size = precision, min(batch_size, trained.at_once)
        self.normalize = trained.normalize
        self.workers = make_workers(self.model, precision, self.batch_size, most=trained.at_once)

    def batches(self, images: ImageSet) -> EvalBatches:
        return EvalBatches(images, self.normalize, self.batch_size, self.precision.device)

    def __call__(self, images: ImageSet) -> Evaluation:
        classes = len(self.meta.classes) if self.meta.task.needs_labels else 1
        require_memory(
            len(images) * classes * ANSWER_BYTES,
            f"the predictions for {counted(len(images), 'image')} and {classes:,} classes",
            "evaluate fewer images, data.test_subset=N",
        )
        batches = self.meta.task.eval_loader(self.batches(images))
        with self.workers:
            return evaluate(self.model, self.meta.task, batches, self.precision, self.workers)


def temperature(
    evaluator: Evaluator, split: str, images: ImageSet | None, note: bool
) -> float | None:
    """Fit the temperature of a classifier on its run's validation `images`.

    Return None if there are none beside those that are evaluated. `note` it in the run's folder, if
    these are all of them.
    """
    meta = evaluator.meta
    beside = meta.config.data.val == "split" and split != "val"
    if not beside or not meta.task.needs_labels:
        return None
    if images is None:
        logger.info("no temperature is fitted: that takes the run's own validation images")
        return None
    result = evaluator(images)
    assert isinstance(result, Classification)
    fitted = fitted_temperature(result.answers)
    if fitted <= COLDEST:
        logger.info(f"no temperature is fitted: too few validation images ({len(images):,})")
        return None
    if note:
        note_temperature(meta, fitted)
    return fitted


def note_temperature(meta: Meta, fitted: float) -> None:
    """Note a checkpoint's temperature where `load` finds it."""
    file, noted = calibration_file(meta.path), noted_temperatures(meta.path)
    if noted is None:
        logger.warning(f"the temperature is not noted: {file} is not a file of vit-eval")
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)  # a built-in model has no folder yet
        write_json(file, {"temperatures": noted | {temperature_key(meta): fitted}})
    except OSError as error:
        logger.warning(f"the temperature is not noted: {file}: {error.strerror}")


def flipped(evaluator: Evaluator, images: ImageSet, plain: Evaluation) -> Classification:
    """Evaluate the mean of each image's and its mirror image's probabilities."""
    mirrored = evaluator(replace(images, images=images.images.flip(3)))
    assert isinstance(plain, Classification) and isinstance(mirrored, Classification)
    pair = plain.answers.log_probabilities, mirrored.answers.log_probabilities
    result = Classification.of(Answers(plain.answers.labels, np.logaddexp(*pair) - np.log(2)))
    logger.info(f"with the mirror images, tta=flip: {result_line(result)}")
    return result


def robustness(evaluator: Evaluator, images: ImageSet) -> dict[str, list[float]]:
    """Return the accuracy on corrupted images, by corruption, at each severity."""
    found: dict[str, list[float]] = {}
    for name in CORRUPTIONS:
        for severity in range(1, SEVERITIES + 1):
            worse = replace(images, images=corrupted(images.images, name, severity))
            result = evaluator(worse)
            assert isinstance(result, Classification)
            found.setdefault(name, []).append(result.acc)
        logger.info(f"{name}: {', '.join(f'{acc:.1%}' for acc in found[name])}")
    return found
