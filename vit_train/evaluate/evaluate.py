"""`vit-eval`: evaluate a checkpoint, and write its results."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from vit_train.base.log import logger
from vit_train.base.reading import flatten, read_object
from vit_train.base.text import counted, csv_text, file_name, printable
from vit_train.base.writing import output_folder, write_json, write_text
from vit_train.config.data import DataConfig
from vit_train.config.fields import as_setting
from vit_train.config.tools import EvalConfig
from vit_train.config.training import BEST
from vit_train.data.batches import EvalBatches
from vit_train.data.dataset import ImageSet
from vit_train.data.image_files import files_at
from vit_train.data.splits import sample
from vit_train.evaluate.measuring import (
    abstention,
    flipped,
    foreign,
    measure,
    numbers,
    robustness,
    save_calibration,
    tag_numbers,
    tag_rows,
    tag_table,
    temperature,
)
from vit_train.evaluate.pages import evaluation_page
from vit_train.evaluate.summaries import read_curve, validated_on
from vit_train.explain.explainer import Explainer, true_classes
from vit_train.figures.charts import Figure, curves, draw_robustness, save
from vit_train.figures.images import MOST_PLACES, draw_gallery, draw_positions, gallery_size
from vit_train.figures.measures import class_table, figures, result_dict, result_line
from vit_train.loop.metrics import Classification, Predictions
from vit_train.loop.precision import Precision, pick_precision
from vit_train.loop.tagging import Tagging
from vit_train.model.vit import encoder_of
from vit_train.trained import provenance
from vit_train.trained.folder import (
    PREFIX,
    SUFFIX,
    is_builtin,
    removed_if_empty,
    run_folder,
    summary_file,
)
from vit_train.trained.images import evaluated_images
from vit_train.trained.load import load_on
from vit_train.trained.model import Meta, Trained

# Number of images with drawn maps, and number of images on which maps are measured.
SHOWN, EXPLAINED = 12, 256
# Number of classes to name for each image.
TOP = 5


@dataclass(frozen=True)
class Evaluated:
    """A model, its plain results (those on the images as they are), and what results.json holds."""

    config: EvalConfig
    trained: Trained
    precision: Precision
    # Evaluates the model on images, always in the same precision and batch size.
    measure: Callable[[ImageSet], Any]
    # The files that config.foreign names.
    files: Sequence[Path]
    images: ImageSet
    result: Any  # an Evaluation: of classes, a Classification; of tags, a Tagging
    content: dict[str, Any]

    @property
    def meta(self) -> Meta:
        return self.trained.meta

    @cached_property
    def run(self) -> dict[str, Any]:
        """Return the summary and curve of the model's run, or {} if either cannot be read.

        The checkpoint may have been copied elsewhere, or a file may be damaged.
        """
        file = summary_file(self.meta.path)
        try:
            return read_object(file) | {"curve": read_curve(file)}
        except (OSError, ValueError):
            return {}

    @cached_property
    def explainer(self) -> Explainer | None:
        """Return an explainer, or log why the model cannot be explained and return None."""
        # Uncalibrated probabilities, as everywhere else in an evaluation.
        uncalibrated = self.trained._replace(meta=replace(self.meta, temperature=None))
        try:
            return Explainer(uncalibrated, precision=self.precision)
        except ValueError as error:
            logger.info(f"the predictions are not explained: {error}")
            return None


def evaluate_checkpoint(config: EvalConfig) -> Evaluated:
    """Evaluate a checkpoint on one split, print the result and write everything into a folder."""
    trained = load_on(config.ckpt, config.device, config.weights, config.data.image_size)
    return evaluate_loaded(trained, config)


def evaluate_loaded(trained: Trained, config: EvalConfig) -> Evaluated:
    """Evaluate a loaded model; raise ValueError for settings that its task does not support."""
    meta = trained.meta
    if (config.tta != "none" or config.robustness or config.foreign) and not meta.task.one_class:
        raise ValueError(
            "tta=flip, robustness=true and foreign= are for classifiers, not for "
            f"task={meta.config.task.name}"
        )
    folder = output_folder(config.out, default_folder(config, meta))
    with removed_if_empty(folder, named=config.out is not None):
        folder.mkdir(parents=True, exist_ok=True)
        return evaluate_into(folder, trained, config)


def evaluate_into(folder: Path, trained: Trained, config: EvalConfig) -> Evaluated:
    """Evaluate a model, print the result and write everything into the folder."""
    meta, asked = trained.meta, config.precision
    precision = pick_precision(asked, trained.device, trained.model) if asked else trained.precision
    files = files_at(config.foreign, "foreign") if config.foreign else []
    (images, val, caveat), data = evaluated_images(config.data, config.split, meta)
    batch_size = min(config.batch_size or meta.config.train.eval_batch_size, trained.at_once)
    measured = partial(measure, trained, precision, batch_size)

    logger.info(f"evaluating {counted(len(images), f'{config.split} image')} of {data.title}")
    result = measured(images)
    if not np.isfinite(result.loss):
        raise ValueError(
            f"the loss of {meta.path} on these images is {result.loss}: the weights are "
            "damaged, or the training diverged"
        )
    logger.info(
        f"{meta.path}: epoch {meta.epoch}, {counted(meta.images_seen, 'image')} seen, "
        f"{meta.weights} weights, {precision.name} on {precision.device.type}\n"
        f"{data.title}, {config.split}: {result_line(result)}"
    )
    # The temperature and the thresholds are fitted on validation images, which are not evaluated.
    may_calibrate = config.split != "val" and meta.config.data.val == "split"
    validation = measured(val) if may_calibrate and meta.task.needs_labels and val else None
    content = facts(config, data, meta, precision) | plain_measures(
        result, validation, config, meta
    )
    if validation is not None and asked is None:
        save_calibration(meta, content)
    content["caveat"] = caveat
    evaluated = Evaluated(config, trained, precision, measured, files, images, result, content)
    for name, (applies, measure_more) in OPTIONAL.items():
        if applies(evaluated):
            content[name] = measure_more(evaluated)
    write(folder, evaluated)
    return evaluated


def plain_measures(result: Any, validation: Any, config: EvalConfig, meta: Meta) -> dict[str, Any]:
    """Return a result's measures, calibrated on the results of validation images if given.

    Also print those of each class or tag.
    """
    if isinstance(result, Tagging):
        least = (
            meta.tag_thresholds if validation is None else validation.predictions.best_thresholds
        )
        found = tag_numbers(result.predictions, meta.classes, least)
        logger.info(tag_table(found["per_tag"]))
        return numbers(result, meta.classes, None) | found
    if isinstance(result, Classification):
        logger.info(class_table(result, meta.classes))
    if validation is None:
        return numbers(result, meta.classes, None)
    fitted = temperature(validation.predictions)
    chosen_on = validation.predictions.calibrated(fitted)
    rows = abstention(chosen_on, result.predictions.calibrated(fitted), config.split)
    return numbers(result, meta.classes, fitted) | {"abstention": rows}


def on_mirrored(plain: Evaluated) -> dict[str, Any]:
    return result_dict(flipped(plain.measure, plain.images, plain.result.predictions))


def on_corrupted(plain: Evaluated) -> dict[str, Any]:
    return robustness(plain.measure, plain.images, plain.result.predictions)


def on_foreign(plain: Evaluated) -> dict[str, Any]:
    # Foreign images get the precision and the temperature of the evaluated images.
    fitted = plain.content.get("calibration", {}).get("temperature")
    own_config = replace(plain.meta.config, precision=plain.precision.name)
    same = plain.trained._replace(meta=replace(plain.meta, temperature=fitted, config=own_config))
    own, rows = plain.result.predictions.calibrated(fitted), plain.content.get("abstention", [])
    return {"folder": plain.config.foreign} | foreign(same, plain.files, own, rows)


def on_deletion(plain: Evaluated) -> dict[str, float]:
    assert plain.explainer is not None
    return plain.explainer.focus(sample(plain.images, EXPLAINED).images)


# The optional measures by their keys in results.json: whether a model has them, or the user wants
# them (`evaluate_loaded` refuses those that the task does not have), and how to compute them from
# the model, the images and the plain results.
OPTIONAL: dict[str, tuple[Callable[[Evaluated], object], Callable[[Evaluated], dict[str, Any]]]] = {
    "tta_flip": (lambda plain: plain.config.tta == "flip", on_mirrored),
    "robustness": (lambda plain: plain.config.robustness, on_corrupted),
    "foreign": (lambda plain: plain.files, on_foreign),
    "focus": (lambda plain: plain.explainer, on_deletion),
}


def facts(config: EvalConfig, data: DataConfig, meta: Meta, precision: Precision) -> dict[str, Any]:
    """Return the settings and versions on which an evaluation's results depend."""
    return {
        "checkpoint": display_name(meta.path),
        "weights": meta.weights,
        "data": data.name,
        "title": data.title,
        "root": data.root,
        "split": config.split,
        "image_size": as_setting(meta.image_shape[1:]),
        "selected_on": meta.config.data.selected_on,
        "epoch": meta.epoch,
        "images_seen": meta.images_seen,
        "classes": meta.classes,
        "precision": precision.name,
        "machine": provenance.machine(precision.device),
        "versions": provenance.versions(),
        "commit": provenance.commit(),
        "command": provenance.command_line(),
        "date": provenance.today(),
    }


def write(folder: Path, evaluated: Evaluated) -> None:
    """Write results.json, the figures, report.html and, with labels, predictions.csv."""
    images, result, content = evaluated.images, evaluated.result, evaluated.content
    write_json(folder / "results.json", content)
    if isinstance(result, Classification | Tagging):
        rows = (
            tag_rows(result.predictions, images.all_names, content["per_tag"])
            if isinstance(result, Tagging)
            else prediction_rows(result.predictions, images.all_names.tolist(), content["classes"])
        )
        write_text(folder / "predictions.csv", csv_text(rows))
    drawn = pictures(evaluated)
    pngs = {name: save(figure, folder / f"{name}.png") for name, figure in drawn}
    write_text(
        folder / "report.html", evaluation_page(content, result, images, evaluated.run, pngs)
    )
    logger.info(
        f"written to {folder}/: report.html, results.json, "
        f"{', '.join(f'{name}.png' for name in pngs)}"
    )


def prediction_rows(
    predictions: Predictions, names: Sequence[object], classes: Sequence[str]
) -> Iterator[list[object]]:
    """Yield the rows of predictions.csv: a header, then a row for each image.

    The columns are the image's name, its true class, its predicted class, whether the prediction is
    correct, the probabilities of the predicted and the true class, and the next most probable
    classes with their probabilities.
    """
    named = [printable(name) for name in classes]
    top = predictions.top(min(TOP, predictions.classes))
    places = range(2, top.shape[1] + 1)
    yield [
        *("image", "true", "predicted", "correct", "probability", "true_probability"),
        *chain(*((f"predicted_{place}", f"probability_{place}") for place in places)),
    ]
    for name, label, best, chances in zip(
        names, predictions.labels, top, np.exp(predictions.log_probabilities), strict=True
    ):
        first, *next_ones = best
        yield [
            *(printable(str(name)), named[label], named[first], int(first == label)),
            *(f"{chances[first]:.6f}", f"{chances[label]:.6f}"),
            *chain(*((named[other], f"{chances[other]:.6f}") for other in next_ones)),
        ]


def pictures(evaluated: Evaluated) -> Iterator[tuple[str, Figure]]:
    """Yield (name, figure) for each figure of an evaluation."""
    trained, images, content = evaluated.trained, evaluated.images, evaluated.content
    model, task, names = trained.model, trained.meta.task, images.all_names.tolist()
    yield from figures(evaluated.result, images.images, trained.meta.classes, names)
    if "robustness" in content:
        by_severity, clean = content["robustness"]["acc_by_severity"], content["result"]["acc"]
        yield "robustness", draw_robustness(by_severity, clean)
    if task.columns and (count := gallery_size(task, model)):
        count = min(count, trained.at_once)
        batches = EvalBatches(sample(images, count), trained.normalize, count, trained.device)
        batch = next(iter(task.eval_loader(batches)))
        yield "pictures", draw_gallery(task, model, batch, trained.normalize)
    if evaluated.explainer is not None:
        shown = sample(images, SHOWN)
        titles = true_classes(shown, trained.meta)
        yield "maps", evaluated.explainer.draw_maps(shown.images, titles)
    encoder = encoder_of(model)
    if encoder is not None and len(encoder.pos_embed) and math.prod(encoder.grid) <= MOST_PLACES:
        yield "positions", draw_positions(encoder)
    if evaluated.run.get("curve"):
        yield "curves", draw_curves({"this run": evaluated})


def draw_curves(runs: Mapping[str, Evaluated]) -> Figure:
    """Draw the loss and the main measure of runs, by name, whose curves are known."""
    found = list(runs.values())
    histories = [(name, [each.run["curve"]]) for name, each in runs.items()]
    on = validated_on([each.content for each in found])
    return curves(histories, found[0].result.scalars[:2], on)


def display_name(checkpoint: Path) -> str:
    """Return a checkpoint's name as a user would write it: its path, or builtin:NAME."""
    return f"{PREFIX}{checkpoint.stem}" if is_builtin(checkpoint) else str(checkpoint)


# Settings that are not hashed: they alter no result, or are in the folder's name.
UNHASHED = ("ckpt", "split", "out", "batch_size", "device", "data.download")
PLACES = ("data.root", "data.file", "foreign")


def default_folder(config: EvalConfig, first: Meta, *others: Meta) -> Path:
    """Return the output folder, in the run of the first model; evaluations that differ share none.

    Its name is eval-SPLIT, the checkpoint's name unless it is the best, and a hash of the settings
    that differ from their defaults and of the `others`, with which the first model is compared.
    """
    found, default = (dict(flatten(asdict(each))) for each in (config, EvalConfig()))
    changed = [
        f"{key}={Path(value).expanduser().resolve() if key in PLACES else value}"
        for key, value in found.items()
        if value != default[key] and key not in UNHASHED
    ]
    changed += [str(meta.path.resolve()) for meta in others]
    mark = hashlib.sha256("\0".join(changed).encode(errors="surrogateescape")).hexdigest()[:8]
    is_best = first.path.name == BEST or is_builtin(first.path)
    name = "" if is_best else file_name(first.path.name.removesuffix(SUFFIX))
    parts = ("eval", config.split, name, mark if changed else "")
    return run_folder(first.path) / "-".join(filter(None, parts))
