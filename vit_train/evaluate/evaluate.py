"""`vit-eval`: evaluate a checkpoint, and write its results."""

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vit_train.base import machine
from vit_train.base.log import logger
from vit_train.base.reading import flatten, read_object
from vit_train.base.text import counted, csv_text
from vit_train.base.writing import write_json, write_text
from vit_train.config.data import DataConfig, FolderConfig
from vit_train.config.fields import as_setting
from vit_train.config.tools import EvalConfig
from vit_train.data.batches import EvalBatches
from vit_train.data.dataset import ImageSet
from vit_train.data.files import files_at
from vit_train.data.splits import sample
from vit_train.evaluate.features import probe, probed
from vit_train.evaluate.measuring import (
    averaged,
    foreign,
    measure,
    measures,
    robustness,
    save_calibration,
)
from vit_train.evaluate.pages import evaluation_page, write_workbench
from vit_train.evaluate.predict import class_rows, tag_rows
from vit_train.evaluate.summaries import Json, read_curve, validated_on
from vit_train.explain.explainer import Explainer, true_classes
from vit_train.figures.charts import Figure, curves, draw_robustness, save
from vit_train.figures.images import (
    draw_gallery,
    draw_positions,
    gallery_size,
    has_position_table,
    highest,
)
from vit_train.figures.measures import figures, result_dict, result_line
from vit_train.loop.device import Precision
from vit_train.loop.metrics import Classification, Evaluation
from vit_train.loop.tagging import Tagging
from vit_train.model.vit import encoder_of
from vit_train.trained.folder import (
    PREFIX,
    is_builtin,
    name_unless_best,
    removed_if_empty,
    run_folder,
    summary_file,
)
from vit_train.trained.images import EvalImages, evaluated_images
from vit_train.trained.load import load_on
from vit_train.trained.model import Meta, Trained

# Number of images with drawn maps, and number of images on which maps are measured.
MAPPED = 12
EXPLAINED = 256
# A warning on the page of the mistakes.
ABOUT_MISTAKES = (
    "The model gets these photos wrong; most of their labels may be right. Change a label only if "
    "the photo shows that it is wrong: since only mistakes are shown, changed labels can only "
    "raise the accuracy."
)


@dataclass(frozen=True)
class Evaluated:
    """A model's results on a set of images, and the content of results.json."""

    meta: Meta
    images: ImageSet
    result: Any  # a Classification, a Tagging or, for tasks without labels, an Evaluation
    content: Json
    # The summary and curve of the model's run, or {} if they cannot be read.
    run: Json


def evaluate_checkpoint(config: EvalConfig) -> Evaluated:
    """Evaluate a checkpoint on one split, print the result and write everything into a folder."""
    trained = load_on(config.ckpt, config.device, config.weights, config.data.image_size)
    return evaluate_loaded(trained, config)


def evaluate_loaded(
    trained: Trained, config: EvalConfig, loaded: tuple[EvalImages, DataConfig] | None = None
) -> Evaluated:
    """Evaluate a loaded model on the `loaded` images or, if None, those that the config names.

    Raise ValueError for settings that the model's task does not support.
    """
    meta = trained.meta
    if (config.tta != "none" or config.robustness or config.foreign) and not meta.task.one_class:
        raise ValueError(
            "tta=flip, robustness=true and foreign= are for classifiers, not for "
            f"task={meta.config.task.name}"
        )
    folder = Path(config.out or default_folder(config, meta))
    with removed_if_empty(folder, named=config.out is not None):
        folder.mkdir(parents=True, exist_ok=True)
        return evaluate_into(folder, trained, config, loaded)


def evaluate_into(
    folder: Path,
    trained: Trained,
    config: EvalConfig,
    loaded: tuple[EvalImages, DataConfig] | None,
) -> Evaluated:
    """Evaluate a model, print the result and write everything into the folder."""
    meta = trained.meta
    asked = config.precision
    precision = trained.in_precision(asked) if asked else trained.precision
    files = files_at(config.foreign, "foreign") if config.foreign else []
    (images, val, caveat, train, biased), data = loaded or evaluated_images(
        config.data, config.split, meta, with_train=config.probe
    )
    fitted = probed(train) if config.probe else None
    measured = partial(measure, trained, precision=precision, batch_size=config.batch_size)

    logger.info(f"evaluating {counted(len(images), f'{config.split} image')} of {data.title}")
    result = measured(images)
    require_finite_loss(result, meta)
    logger.info(
        f"{meta.path}: epoch {meta.epoch}, {counted(meta.images_seen, 'image')} seen, "
        f"{meta.weights} weights, {precision.name} on {precision.device.type}\n"
        f"{data.title}, {config.split}: {result_line(result)}"
    )
    val = held_out(val, config, meta)
    validation = measured(val).predictions if val and meta.task.needs_labels else None
    content = facts(config, data, meta, precision) | {"caveat": caveat, "biased": biased}
    content |= measures(result, validation, config.split, meta)
    may_save = validation is not None and asked is None
    content["calibration_saved"] = may_save and save_calibration(meta, content)
    if fitted:
        content["probe"] = probe(trained, fitted, val, images, data)
    if config.tta == "flip":
        mirrored = measured(images, mirrored=True)
        content["tta_flip"] = result_dict(averaged(result.predictions, mirrored.predictions))
    if config.robustness:
        content["robustness"] = robustness(measured, images)
    if files:
        found = foreign(trained, precision, files, result.predictions, content)
        content["foreign"] = {"folder": config.foreign} | found
    explainer = explainer_of(trained, precision)
    if explainer:
        content["focus"] = explainer.focus(sample(images, EXPLAINED).images)
    content |= mistakes_page(folder, images, result, meta, data)
    evaluated = Evaluated(meta, images, result, content, run_of(meta.path))
    write(folder, evaluated, pictures(evaluated, trained, explainer))
    return evaluated


def held_out(val: ImageSet | None, config: EvalConfig, meta: Meta) -> ImageSet | None:
    """Return the validation images if they may choose a temperature, threshold or weight decay.

    They may not if they are evaluated, or if the run validated on other images.
    """
    return val if config.split != "val" and meta.config.data.val == "split" else None


def require_finite_loss(result: Evaluation, meta: Meta) -> None:
    """Raise ValueError if the loss is NaN or infinite."""
    if not np.isfinite(result.loss):
        raise ValueError(
            f"the loss of {meta.path} on these images is {result.loss}: the weights are "
            "damaged, or the training diverged"
        )


def run_of(checkpoint: Path) -> Json:
    """Return the summary and curve of a checkpoint's run, or {} if either cannot be read.

    The checkpoint may have been copied elsewhere, or a file may be damaged.
    """
    file = summary_file(checkpoint)
    try:
        return read_object(file) | {"curve": read_curve(file)}
    except (OSError, ValueError):
        return {}


def explainer_of(trained: Trained, precision: Precision) -> Explainer | None:
    """Return an explainer, or log why the model cannot be explained and return None."""
    # Uncalibrated probabilities, as everywhere else in an evaluation.
    uncalibrated = trained._replace(meta=replace(trained.meta, temperature=None))
    try:
        return Explainer(uncalibrated, precision=precision)
    except ValueError as error:
        logger.info(f"the predictions are not explained: {error}")
        return None


def facts(config: EvalConfig, data: DataConfig, meta: Meta, precision: Precision) -> Json:
    """Return the settings and versions on which an evaluation's results depend."""
    return {
        "checkpoint": f"{PREFIX}{meta.path.stem}" if is_builtin(meta.path) else str(meta.path),
        "weights": meta.weights,
        "data": data.name,
        "title": data.title,
        "root": data.root,
        "white_level": meta.white_level,
        "split": config.split,
        "image_size": as_setting(meta.image_shape[1:]),
        "selected_on": meta.config.data.selected_on,
        "epoch": meta.epoch,
        "images_seen": meta.images_seen,
        "classes": meta.classes,
        "precision": precision.name,
        "machine": machine.hardware(precision.device),
        "versions": machine.versions(),
        "commit": machine.commit(),
        "command": machine.command_line(),
        "date": machine.today(),
    }


def mistakes_page(
    folder: Path, images: ImageSet, result: Evaluation, meta: Meta, data: DataConfig
) -> Json:
    """Write a page on which the user decides on a classifier's mistakes on image files.

    Return {"workbench": its name}, or {} for other models and images.
    """
    if not isinstance(result, Classification) or not isinstance(data, FolderConfig):
        return {}
    found = result.predictions
    cases = [
        [
            (
                str(images.all_names[index]),
                meta.classes[found.labels[index]],
                f"predicted {meta.classes[found.predicted[index]]}: {found.confidence[index]:.0%}",
                meta.classes[found.predicted[index]],
            )
        ]
        for index in highest(found.confidence, ~found.correct, len(found.labels))
    ]
    sections = {"Mistakes, the most confident first": cases}
    write_workbench(folder / "workbench.html", sections, meta.classes, data, ABOUT_MISTAKES)
    return {"workbench": "workbench.html"}


def write(folder: Path, evaluated: Evaluated, drawn: Iterator[tuple[str, Figure]]) -> None:
    """Write results.json, the figures, report.html and, with labels, predictions.csv."""
    names = evaluated.images.all_names.tolist()
    result = evaluated.result
    content = evaluated.content
    write_json(folder / "results.json", content)
    files = ["report.html", "results.json"]
    if isinstance(result, Classification | Tagging):
        rows = (
            tag_rows(result.predictions, names, content["per_tag"])
            if isinstance(result, Tagging)
            else class_rows(result.predictions, names, content["classes"])
        )
        write_text(folder / "predictions.csv", csv_text(rows))
        files.append("predictions.csv")
    pngs = {name: save(figure, folder / f"{name}.png") for name, figure in drawn}
    page = evaluation_page(content, result, evaluated.images, evaluated.run, pngs)
    write_text(folder / "report.html", page)
    files += [f"{name}.png" for name in pngs]
    logger.info(f"written to {folder}/: {', '.join(files)}")


def pictures(
    evaluated: Evaluated, trained: Trained, explainer: Explainer | None
) -> Iterator[tuple[str, Figure]]:
    """Yield (name, figure) for each figure of an evaluation."""
    meta = evaluated.meta
    images = evaluated.images
    content = evaluated.content
    yield from figures(evaluated.result, images, meta.classes)
    if "robustness" in content:
        by_severity = content["robustness"]["acc_by_severity"]
        yield "robustness", draw_robustness(by_severity, content["result"]["acc"])
    if count := min(gallery_size(meta.task, trained.model), trained.at_once):
        batches = EvalBatches(sample(images, count), trained.normalize, count, trained.device)
        batch = next(iter(meta.task.eval_loader(batches)))
        yield "pictures", draw_gallery(meta.task, trained.model, batch, trained.normalize)
    if explainer is not None:
        shown = sample(images, MAPPED)
        yield "maps", explainer.draw_maps(shown.images, true_classes(shown, meta))
    encoder = encoder_of(trained.model)
    if encoder is not None and has_position_table(encoder):
        yield "positions", draw_positions(encoder)
    if curve := evaluated.run.get("curve"):
        measures = evaluated.result.scalars[:2]
        yield "curves", curves([("this run", [curve])], measures, validated_on([content]))


# Settings that are not hashed: they alter no result, or are in the folder's name.
UNHASHED = ("ckpt", "split", "out", "batch_size", "device", "data.download")
PLACES = ("data.root", "data.file", "data.decisions", "foreign")


def default_folder(config: EvalConfig, first: Meta, *others: Meta) -> Path:
    """Return the output folder, in the run of the first model.

    Its name is eval-SPLIT, plus the checkpoint's name unless it is the best checkpoint, plus a
    hash, so that different evaluations have different folders. The hash covers the settings that
    differ from their defaults, and the models `others` that the first model is compared with.
    """
    default = flatten(asdict(EvalConfig()))
    changed = [
        f"{key}={Path(value).expanduser().resolve() if key in PLACES else value}"
        for key, value in flatten(asdict(config))
        if (key, value) not in default and key not in UNHASHED
    ]
    changed += [str(meta.path.resolve()) for meta in others]
    mark = hashlib.sha256("\0".join(changed).encode(errors="surrogateescape")).hexdigest()[:8]
    parts = ("eval", config.split, name_unless_best(first.path), mark if changed else "")
    return run_folder(first.path) / "-".join(filter(None, parts))
