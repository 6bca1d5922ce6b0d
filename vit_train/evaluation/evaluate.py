"""`vit-eval`: evaluate a checkpoint, and write its results."""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vit_train.base.log import logger
from vit_train.base.reading import flatten, read_object
from vit_train.base.setting import as_setting
from vit_train.base.text import counted, csv_text, file_name, printable
from vit_train.base.writing import output_folder, write_json, write_text
from vit_train.data.batches import EvalBatches
from vit_train.data.config import DataConfig
from vit_train.data.dataset import ImageSet
from vit_train.data.image_files import files_at
from vit_train.data.splits import sample
from vit_train.engine.config import BEST
from vit_train.engine.metrics import Classification, Evaluation, Predictions
from vit_train.engine.precision import Precision, pick_precision
from vit_train.engine.tagging import Tagging
from vit_train.evaluation.measuring import (
    abstention,
    flipped,
    foreign,
    measure,
    numbers,
    robustness,
    save_calibration,
    temperature,
)
from vit_train.evaluation.pages import evaluation_page
from vit_train.evaluation.tags import tag_numbers, tag_rows, tag_table
from vit_train.explain.explainer import Explainer, true_classes
from vit_train.figures.charts import Curve, Figure, curves, draw_robustness, save
from vit_train.figures.maps import MOST_PLACES, draw_gallery, draw_positions, gallery_size
from vit_train.figures.measures import class_table, figures, result_dict, result_line
from vit_train.model.vit import encoder_of
from vit_train.results.summaries import read_curve, validated_on
from vit_train.runs import provenance
from vit_train.runs.images import evaluated_images
from vit_train.runs.load import load_on
from vit_train.runs.paths import (
    PREFIX,
    SUFFIX,
    is_builtin,
    removed_if_empty,
    run_folder,
    summary_file,
)
from vit_train.runs.settings import EvalConfig
from vit_train.runs.trained import Meta, Trained

# Number of images with drawn maps, and number of images on which maps are measured.
SHOWN, EXPLAINED = 12, 256
# Number of classes to name for each image.
TOP = 5


class Evaluated(NamedTuple):
    """An evaluated checkpoint: the content of results.json, and the run's curve, if known."""

    meta: Meta
    images: ImageSet
    result: Evaluation
    content: dict[str, Any]
    curve: Curve


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
    result: Evaluation = measured(images)
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
    if isinstance(result, Classification):
        logger.info(class_table(result, meta.classes))
    # The temperature and the thresholds are fitted on validation images, which are not evaluated.
    may_calibrate = (
        config.split != "val"
        and meta.config.data.val == "split"
        and isinstance(result, Classification | Tagging)
    )
    validation: Any = measured(val).predictions if may_calibrate and val else None
    fitted, thresholds = None, {}
    if validation is not None and isinstance(result, Classification):
        fitted = temperature(validation)
    content = facts(config, data, meta, precision) | numbers(result, meta.classes, fitted)
    if isinstance(result, Tagging):
        least = meta.tag_thresholds if validation is None else validation.best_thresholds
        content |= tag_numbers(result.predictions, meta.classes, least)
        thresholds = dict(zip(meta.classes, least.tolist(), strict=True))
        logger.info(tag_table(content["per_tag"]))
    elif validation is not None and isinstance(result, Classification):
        content["abstention"] = abstention(
            validation.calibrated(fitted), result.predictions.calibrated(fitted), config.split
        )
        thresholds = {str(row["target"]): row["threshold"] for row in content["abstention"]}
    if validation is not None and config.precision is None:
        save_calibration(meta, fitted, thresholds)
    content["caveat"] = caveat
    if isinstance(result, Classification):  # `evaluate_loaded` refuses these for other tasks
        if config.tta == "flip":
            content["tta_flip"] = result_dict(flipped(measured, images, result.predictions))
        if config.robustness:
            content["robustness"] = robustness(measured, images, result.predictions)
        if files:
            # Foreign images get the precision and the temperature of the evaluated images.
            run_config = replace(meta.config, precision=precision.name)
            same = trained._replace(meta=replace(meta, temperature=fitted, config=run_config))
            own, rows = result.predictions.calibrated(fitted), content.get("abstention", [])
            content["foreign"] = {"folder": config.foreign} | foreign(same, files, own, rows)
    explainer = explainer_of(trained, precision)
    if explainer is not None:
        content["focus"] = explainer.focus(sample(images, EXPLAINED).images)
    summary = summary_file(meta.path)
    try:
        run, curve = read_object(summary), read_curve(summary)
    except (OSError, ValueError):  # a checkpoint that was copied elsewhere, or a damaged file
        run, curve = {}, []
    evaluated = Evaluated(meta, images, result, content, curve)
    write(folder, evaluated, trained, explainer, run)
    return evaluated


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


def explainer_of(trained: Trained, precision: Precision) -> Explainer | None:
    """Return an explainer for a model, or log why the model cannot be explained and return None."""
    # Uncalibrated probabilities, as everywhere else in an evaluation.
    uncalibrated = trained._replace(meta=replace(trained.meta, temperature=None))
    try:
        return Explainer(uncalibrated, precision=precision)
    except ValueError as error:
        logger.info(f"the predictions are not explained: {error}")
        return None


def write(
    folder: Path,
    evaluated: Evaluated,
    trained: Trained,
    explainer: Explainer | None,
    run: dict[str, Any],
) -> None:
    """Write results.json, the figures, report.html and, with labels, predictions.csv.

    `run` is the summary of the model's run, which may be empty.
    """
    meta, images, result, content, _ = evaluated
    write_json(folder / "results.json", content)
    if isinstance(result, Classification | Tagging):
        rows = (
            tag_rows(result.predictions, images.all_names, content["per_tag"])
            if isinstance(result, Tagging)
            else prediction_rows(result.predictions, images.all_names.tolist(), meta.classes)
        )
        write_text(folder / "predictions.csv", csv_text(rows))
    drawn = pictures(evaluated, trained, explainer, run)
    pngs = {name: save(figure, folder / f"{name}.png") for name, figure in drawn}
    write_text(folder / "report.html", evaluation_page(content, result, images, run, pngs))
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


def pictures(
    evaluated: Evaluated,
    trained: Trained,
    explainer: Explainer | None,
    run: dict[str, Any],
) -> Iterator[tuple[str, Figure]]:
    """Yield (name, figure) for each figure of an evaluation; see `write`."""
    meta, images, result, content, curve = evaluated
    model = trained.model
    yield from figures(result, images.images, meta.classes, images.all_names.tolist())
    if "robustness" in content:
        by_severity, clean = content["robustness"]["acc_by_severity"], content["result"]["acc"]
        yield "robustness", draw_robustness(by_severity, clean)
    if meta.task.columns and (count := gallery_size(meta.task, model)):
        count = min(count, trained.at_once)
        shown = sample(images, count)
        batches = EvalBatches(shown, trained.normalize, count, trained.device)
        batch = next(iter(meta.task.eval_loader(batches)))
        yield "pictures", draw_gallery(meta.task, model, batch, trained.normalize)
    if explainer is not None:
        shown = sample(images, SHOWN)
        yield "maps", explainer.draw_maps(shown.images, true_classes(shown, meta))
    encoder = encoder_of(model)
    if encoder is not None and len(encoder.pos_embed) and math.prod(encoder.grid) <= MOST_PLACES:
        yield "positions", draw_positions(encoder)
    if curve:
        measures = ["loss", *(name for name in ("acc", "map") if name in result.values)]
        yield "curves", curves([("this run", [curve])], measures, validated_on([run]))


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
