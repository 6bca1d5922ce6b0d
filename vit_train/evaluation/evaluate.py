"""`vit-eval` after its arguments are accepted: rebuild the model, find the images, evaluate."""

import hashlib
import logging
import math
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from vit_train.base.memory import require_images_fit
from vit_train.base.reading import read_object
from vit_train.base.text import counted, csv_text, file_name
from vit_train.base.writing import make_folder, require_own_folder, write_json, write_text
from vit_train.data.config import DataConfig
from vit_train.data.dataset import ImageSet, sample
from vit_train.engine.config import BEST
from vit_train.engine.metrics import Classification, Evaluation
from vit_train.engine.precision import Precision, keep_freed_memory, pick_device, pick_precision
from vit_train.evaluation.findings import numbers, pictures, predictions, robustness_numbers
from vit_train.evaluation.measuring import flipped, measure, robustness, temperature
from vit_train.evaluation.pages import evaluation_page
from vit_train.explain.explainer import TOO_LARGE, Explainer
from vit_train.figures.charts import save
from vit_train.figures.measures import class_table, result_dict, result_line
from vit_train.model.build import images_at_once
from vit_train.model.vit import VisionTransformer
from vit_train.results.summaries import read_curve
from vit_train.runs import provenance
from vit_train.runs.images import evaluated_images
from vit_train.runs.paths import (
    PREFIX,
    SUMMARY,
    is_builtin,
    is_finished,
    removed_if_empty,
    run_folder,
    summary_file,
)
from vit_train.runs.settings import EvalConfig
from vit_train.runs.trained import Meta, Trained, load

logger = logging.getLogger(__name__)

# Images that the numbers of the maps are measured on.
EXPLAINED = 256


class Evaluated(NamedTuple):
    """An evaluated checkpoint: its images and result, results.json, and the folder with it all."""

    meta: Meta
    images: ImageSet
    result: Evaluation
    content: dict[str, Any]
    folder: Path


def evaluate_checkpoint(config: EvalConfig) -> Evaluated:
    """Evaluate a checkpoint on one split, print the result and write all of it into a folder."""
    return evaluate_loaded(load_for(config, config.ckpt), config)


def load_for(config: EvalConfig, checkpoint: str) -> Trained:
    """Load a checkpoint as it is to be evaluated."""
    keep_freed_memory()
    if (requested := config.data.image_size) is not None:
        require_images_fit(1, requested, f"data.image_size={requested}")
    device = pick_device(config.device)
    return load(checkpoint, device, config.weights, config.data.image_size)


def evaluate_loaded(trained: Trained, config: EvalConfig) -> Evaluated:
    """Evaluate a model that `load_for` has loaded; raise ValueError for what it cannot do."""
    meta = trained.meta
    if not meta.task.needs_labels and (config.tta != "none" or config.robustness):
        raise ValueError(
            "tta=flip and robustness=true are for classifiers, not for "
            f"task={meta.config.task.name}"
        )
    folder = Path(config.out or run_folder(meta.path) / folder_name(config, meta))
    require_own_folder(folder)
    with removed_if_empty(folder, named=config.out is not None):
        make_folder(folder)
        return evaluate_into(folder, trained, config)


def evaluate_into(folder: Path, trained: Trained, config: EvalConfig) -> Evaluated:
    """Evaluate a model, print the result and write all of it into the folder."""
    meta, precision = trained.meta, trained.precision
    if config.precision is not None:
        precision = pick_precision(config.precision, trained.device, trained.model)
    (images, val, caveat), data = evaluated_images(config.data, config.split, meta)
    batch_size = min(config.batch_size or meta.config.train.eval_batch_size, trained.at_once)
    measured = partial(measure, trained, precision, batch_size)

    logger.info(f"evaluating {counted(len(images), f'{config.split} image')} of {data.title}")
    began = time.perf_counter()
    result = measured(images)
    speed = len(images) / (time.perf_counter() - began)
    if not math.isfinite(result.loss):
        raise ValueError(
            f"the loss of {meta.path} on these images is {result.loss}: its weights are damaged, "
            "or its training diverged"
        )
    log_result(result, config, data, meta, precision)
    note = config.data.val_subset is None and config.precision is None
    fitted = temperature(measured, meta, config.split, val, note)
    content = facts(config, data, meta, precision) | numbers(result, meta.classes, fitted)
    content |= {"images_per_s": round(speed, 1), "caveat": caveat}
    if config.tta == "flip" and isinstance(result, Classification):
        content["tta_flip"] = result_dict(flipped(measured, images, result.answers))
    if config.robustness:
        content["robustness"] = robustness_numbers(robustness(measured, images))
    explainer = explainer_of(trained, precision)
    if explainer is not None:
        content["focus"] = explainer.focus(sample(images, EXPLAINED).images)
    evaluated = Evaluated(meta, images, result, content, folder)
    write(evaluated, trained, explainer)
    return evaluated


def log_result(
    result: Evaluation, config: EvalConfig, data: DataConfig, meta: Meta, precision: Precision
) -> None:
    selected = meta.config.data.selected_on == "test"
    note = " (its run chose its best epoch on the test images)" if selected else ""
    run = run_folder(meta.path)
    if (run / SUMMARY).is_file() and not is_finished(run):
        logger.warning(f"the run is not finished: {run}")
    logger.info(
        f"{meta.path}: epoch {meta.epoch}, {counted(meta.images_seen, 'image')} seen, "
        f"{meta.weights} weights, {precision.name} on {precision.device.type}\n"
        f"{data.title}, {config.split}{note}: {result_line(result)}"
    )
    if isinstance(result, Classification):
        logger.info(class_table(result, meta.classes))


def facts(config: EvalConfig, data: DataConfig, meta: Meta, precision: Precision) -> dict[str, Any]:
    """Return the settings and versions that an evaluation's results depend on."""
    return {
        "checkpoint": display_name(meta.path),
        "weights": meta.weights,
        "data": data.name,
        "title": data.title,
        "root": data.root,
        "split": config.split,
        "image_size": meta.image_shape[1],
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
    """Return the explainer of a classifier with attention.

    None for other models, and if the attention for a single image would take too much memory.
    """
    if not isinstance(trained.model, VisionTransformer):
        return None
    if not images_at_once(trained.model):
        logger.info(f"not explained: {TOO_LARGE}")
        return None
    # The probabilities as they are, as in all other parts of an evaluation.
    uncalibrated = trained._replace(meta=replace(trained.meta, temperature=None))
    return Explainer(uncalibrated, precision=precision)


def write(evaluated: Evaluated, trained: Trained, explainer: Explainer | None) -> None:
    """Write the numbers, every image's prediction, the figures and the page of all of them."""
    meta, images, result, content, folder = evaluated
    summary = summary_file(meta.path)
    try:
        run, curve = read_object(summary), read_curve(summary)
    except (OSError, ValueError):  # a checkpoint that was copied elsewhere, or a damaged file
        run, curve = {}, []
    write_json(folder / "results.json", content)
    written, pngs = ["results.json"], {}
    if isinstance(result, Classification):
        rows = predictions(result.answers, images.all_names.tolist(), meta.classes)
        write_text(folder / "predictions.csv", csv_text(rows))
        written.append("predictions.csv")
    for name, figure in pictures(trained, explainer, images, result, content, run, curve):
        save(figure, file := folder / f"{name}.png")
        pngs[name] = file.read_bytes()
        written.append(file.name)
    write_text(folder / "report.html", evaluation_page(content, result, run, pngs))
    logger.info(f"written to {folder}/: {', '.join([*written, 'report.html'])}")


def display_name(checkpoint: Path) -> str:
    """Return a checkpoint as a user would name it."""
    return f"{PREFIX}{checkpoint.stem}" if is_builtin(checkpoint) else str(checkpoint)


def folder_name(config: EvalConfig, meta: Meta) -> str:
    """Return a folder's name with all that differs from a default evaluation."""
    data, split = config.data, config.split
    place = None if data.root is None else Path(data.root).expanduser().resolve()
    subset = {"val": data.val_subset, "test": data.test_subset}.get(split)
    parts = [
        None if meta.path.name == BEST or is_builtin(meta.path) else meta.path.stem,
        data.name,
        place and place.name,
        place and hashlib.sha256(bytes(place)).hexdigest()[:6],
        data.image_size and f"{meta.image_shape[1]}px",
        subset and f"{subset}images",
        # The temperature is fitted on these.
        data.val_subset and split != "val" and f"{data.val_subset}val",
        config.weights != "auto" and config.weights,
        config.precision,
        config.tta != "none" and config.tta,
        config.robustness and "robustness",
    ]
    return "-".join(file_name(part) for part in ["eval", split, *parts] if part)
