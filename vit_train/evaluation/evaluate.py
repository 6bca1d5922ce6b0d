"""`vit-eval` after its arguments are accepted: rebuild the model, find the images, evaluate."""

import hashlib
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from vit_train.base.memory import require_images_fit
from vit_train.base.reading import read_object
from vit_train.base.text import counted, file_name
from vit_train.base.writing import make_folder, replacing, require_own_folder, write_text
from vit_train.data.config import DataConfig
from vit_train.data.dataset import ImageSet, sample
from vit_train.engine.config import BEST
from vit_train.engine.metrics import Classification, Evaluation
from vit_train.engine.precision import Precision, keep_freed_memory, pick_device, pick_precision
from vit_train.evaluation.evaluator import Evaluator, flipped, robustness, temperature
from vit_train.evaluation.findings import Findings, write_evaluation
from vit_train.evaluation.pages import evaluation_page
from vit_train.explain.explainer import TOO_LARGE, Explainer, true_classes
from vit_train.figures.charts import curves, save
from vit_train.figures.maps import MOST_PLACES, draw_gallery, draw_positions, gallery_size
from vit_train.figures.measures import class_table, result_line
from vit_train.model.build import images_at_once
from vit_train.model.vit import VisionTransformer
from vit_train.results.summaries import read_curve, validated_on
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
from vit_train.runs.trained import Meta, Trained, encoder_of, load

logger = logging.getLogger(__name__)

# Images whose answers are explained: in pictures, and in numbers.
SHOWN, EXPLAINED = 12, 256


class Evaluated(NamedTuple):
    """An evaluated checkpoint: its results, and the folder that contains them."""

    meta: Meta
    found: Findings
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
        return Evaluated(meta, evaluate_into(folder, trained, config), folder)


def evaluate_into(folder: Path, trained: Trained, config: EvalConfig) -> Findings:
    """Evaluate a model, print the result and write all of it into the folder."""
    meta = trained.meta
    precision = trained.precision
    if config.precision is not None:
        precision = pick_precision(config.precision, trained.device, trained.model)
    (images, val, caveat), data = evaluated_images(config.data, config.split, meta)
    batch_size = config.batch_size or meta.config.train.eval_batch_size
    evaluator = Evaluator(trained, precision, batch_size)

    logger.info(f"evaluating {counted(len(images), f'{config.split} image')} of {data.title}")
    began = time.perf_counter()
    result = evaluator(images)
    speed = len(images) / (time.perf_counter() - began)
    if not math.isfinite(result.loss):
        raise ValueError(
            f"the loss of {meta.path} on these images is {result.loss}: its weights are damaged, "
            "or its training diverged"
        )
    log_result(result, config, data, evaluator)
    explainer = explainer_of(trained, precision)
    note = config.data.val_subset is None and config.precision is None
    found = Findings(
        result=result,
        images=images.images,
        names=images.all_names.tolist(),
        classes=meta.classes,
        facts=facts(config, data, evaluator) | {"images_per_s": round(speed, 1), "caveat": caveat},
        caveat=caveat,
        temperature=temperature(evaluator, config.split, val, note),
        flipped=flipped(evaluator, images, result) if config.tta == "flip" else None,
        robustness=robustness(evaluator, images) if config.robustness else None,
        focus=explainer.focus(sample(images, EXPLAINED).images) if explainer else None,
    )
    written = write_evaluation(folder, found)
    written += draw_pictures(folder, evaluator, explainer, images)
    written += write_report(folder, found, summary_file(meta.path), written)
    logger.info(f"written to {folder}/: {', '.join(written)}")
    return found


def log_result(
    result: Evaluation, config: EvalConfig, data: DataConfig, evaluator: Evaluator
) -> None:
    meta, precision = evaluator.meta, evaluator.precision
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


def facts(config: EvalConfig, data: DataConfig, evaluator: Evaluator) -> dict[str, Any]:
    """Return the settings and versions that an evaluation's results depend on."""
    meta, precision = evaluator.meta, evaluator.precision
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


def draw_pictures(
    folder: Path, evaluator: Evaluator, explainer: Explainer | None, images: ImageSet
) -> list[str]:
    """Draw the task's pictures and the table of positions; return the files' names."""
    task, model, written = evaluator.meta.task, evaluator.model, []
    if task.columns and gallery_size(task, model):
        batch = next(iter(task.eval_loader(evaluator.batches(images))))
        with replacing(folder / "pictures.png") as file:
            draw_gallery(task, model, batch, evaluator.normalize).save(file, "PNG")
        written.append("pictures.png")
    if explainer is not None:
        shown = sample(images, SHOWN)
        explainer.draw_maps(folder / "maps.png", shown.images, true_classes(shown, evaluator.meta))
        written.append("maps.png")
    encoder = encoder_of(model)
    if encoder is not None and len(encoder.pos_embed) and encoder.grid**2 <= MOST_PLACES:
        save(draw_positions(encoder), folder / "positions.png")
        written.append("positions.png")
    return written


def display_name(checkpoint: Path) -> str:
    """Return a checkpoint as a user would name it."""
    return f"{PREFIX}{checkpoint.stem}" if is_builtin(checkpoint) else str(checkpoint)


def write_report(folder: Path, found: Findings, run: Path, written: Sequence[str]) -> list[str]:
    """Write report.html, with the pictures that were `written` and the summary in file `run`."""
    try:
        summary, curve = read_object(run), read_curve(run)
    except (OSError, ValueError):  # a checkpoint that was copied elsewhere, or a damaged file
        summary, curve = {}, []
    files = [folder / name for name in written if name.endswith(".png")]
    if curve:
        names = ("loss", "acc") if isinstance(found.result, Classification) else ("loss",)
        files.append(folder / "curves.png")
        save(curves([("this run", [curve])], names, validated_on([summary])), files[-1])
    pictures = {file.stem: file.read_bytes() for file in files}
    write_text(folder / "report.html", evaluation_page(found, summary, pictures))
    return ["curves.png", "report.html"] if "curves" in pictures else ["report.html"]


def folder_name(config: EvalConfig, meta: Meta) -> str:
    """Return a folder's name with all that differs from a default evaluation."""
    parts = ["eval", config.split]
    if meta.path.name != BEST and not is_builtin(meta.path):
        parts.append(meta.path.stem)
    if config.data.name is not None:
        parts.append(config.data.name)
    if config.data.root is not None:
        place = Path(config.data.root).expanduser().resolve()
        parts += [place.name, hashlib.sha256(bytes(place)).hexdigest()[:6]]
    if config.data.image_size is not None:
        parts.append(f"{meta.image_shape[1]}px")
    subset = {"val": config.data.val_subset, "test": config.data.test_subset}.get(config.split)
    if subset is not None:
        parts.append(f"{subset}images")
    if config.data.val_subset is not None and config.split != "val":
        parts.append(f"{config.data.val_subset}val")  # on which the temperature is fitted
    if config.weights != "auto":
        parts.append(config.weights)
    if config.precision is not None:
        parts.append(config.precision)
    if config.tta != "none":
        parts.append(config.tta)
    if config.robustness:
        parts.append("robustness")
    return "-".join(map(file_name, parts))
