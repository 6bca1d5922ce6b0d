"""`vit-eval` after its arguments are accepted: rebuild model and data, then evaluate."""

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vit_train.config import EvalConfig
from vit_train.data.batches import EvalBatches, Normalize
from vit_train.data.config import DataConfig, ShapesConfig
from vit_train.data.memory import require_images_fit
from vit_train.data.shapes import SIZE as SHAPES_SIZE
from vit_train.data.splits import make_splits
from vit_train.engine.device import keep_freed_memory, pick_device, pick_precision
from vit_train.engine.evaluation import evaluate
from vit_train.engine.metrics import Classification, Evaluation
from vit_train.engine.workers import make_workers
from vit_train.files.writing import replacing
from vit_train.report import provenance
from vit_train.report.metrics import figures
from vit_train.report.summary import result_dict, write_json
from vit_train.report.terminal import class_table, result_line
from vit_train.runs.builtin import FOLDER as BUILTIN
from vit_train.runs.load import encoder_of, load
from vit_train.viz.figures import ignore_missing_glyphs, shortened
from vit_train.viz.gallery import draw_gallery
from vit_train.viz.positions import draw_positions

logger = logging.getLogger(__name__)
# Bytes of generated images: four times the default data, which takes half a minute to draw.
MAX_DRAWN = 150_000_000


def evaluate_checkpoint(config: EvalConfig) -> Evaluation:
    """Evaluate a checkpoint on one split, print the result and write it into the run's folder."""
    keep_freed_memory()
    device = pick_device(config.device)
    if (requested := config.data.image_size) is not None:
        require_images_fit(1, requested, f"data.image_size={requested}")
    model, meta = load(config.ckpt, device, config.weights, config.data.image_size)
    trained = meta.config
    precision = pick_precision(config.precision or trained.precision, device)

    overrides = {k: v for k, v in vars(config.data).items() if v is not None}
    data_config = replace(trained.data, **overrides)
    require_few_drawn(data_config)
    data = data_config.load()
    if meta.task.needs_labels and list(data.classes) != meta.classes:
        raise ValueError(
            f"the data's classes are {listed(data.classes)}, the model's {listed(meta.classes)}"
        )
    size = data_config.image_size
    if size == trained.data.image_size and meta.fingerprint != data.fingerprint:
        logger.warning(
            "the images are not those of the training run: some of them may have been trained on"
        )
    part = make_splits(data, data_config).named(config.split)
    batch_size = config.batch_size or trained.train.eval_batch_size
    normalize = Normalize(meta.statistics, device)
    batches = meta.task.eval_loader(EvalBatches(part, normalize, batch_size, device))
    with make_workers(model, precision, batch_size) as workers:
        result = evaluate(model, meta.task, batches, precision, workers)

    if not math.isfinite(result.loss):
        raise ValueError(
            f"the loss of {meta.path} on these images is {result.loss}: its weights are damaged, "
            "or its training diverged"
        )
    selected_on = trained.data.selected_on
    note = " (its run chose its best epoch on the test images)" if selected_on == "test" else ""
    logger.info(
        f"{meta.path}: epoch {meta.epoch}, {meta.images_seen:,} images seen, {meta.weights} "
        f"weights, {precision.name} on {device.type}\n"
        f"{data_config.name}, {config.split}{note}: {result_line(result)}"
    )
    if isinstance(result, Classification):
        logger.info(class_table(result, meta.classes))
    target = run_folder(meta.path) / f"{file_name(config, meta.image_shape[1])}.json"
    write_json(
        target,
        {
            "checkpoint": str(meta.path),
            "split": config.split,
            "weights": meta.weights,
            "image_size": meta.image_shape[1],
            "selected_on": selected_on,
            "epoch": meta.epoch,
            "images_seen": meta.images_seen,
            "classes": meta.classes,
            "result": result_dict(result),
            "precision": precision.name,
            "machine": provenance.machine(device),
            "versions": provenance.versions(),
            "commit": provenance.commit(),
        },
    )
    logger.info(f"written to {target}")
    for name, figure in figures(result, meta.classes):
        picture = target.with_name(f"{target.stem}-{name}.png")
        with replacing(picture) as file, ignore_missing_glyphs():
            figure.savefig(file, format="png")
        logger.info(f"{name} in {picture}")
    if meta.task.columns:
        picture = target.with_suffix(".png")
        with replacing(picture) as file:
            draw_gallery(meta.task, model, next(iter(batches)), normalize).save(file, "PNG")
        logger.info(f"pictures in {picture}")
    encoder = encoder_of(model)
    if encoder is not None and len(encoder.pos_embed):
        picture = target.with_name("positions.png")
        with replacing(picture) as file:
            draw_positions(encoder).savefig(file, format="png")
        logger.info(f"positions in {picture}")
    return result


def file_name(config: EvalConfig, image_size: int) -> str:
    """Return a name that says what was evaluated otherwise than the default."""
    size = [] if config.data.image_size is None else [f"{image_size}px"]
    weights = [] if config.weights == "auto" else [config.weights]
    return "-".join(["eval", config.split, *size, *weights])


def require_few_drawn(config: DataConfig) -> None:
    """Raise ValueError if somebody else's checkpoint asks for images that take minutes to draw."""
    if not isinstance(config, ShapesConfig):
        return
    size = config.image_size or SHAPES_SIZE
    if 3 * size**2 * (config.train_images + config.test_images) > MAX_DRAWN:
        raise ValueError(
            f"data.train_images={config.train_images} and data.test_images={config.test_images} "
            f"of {size} by {size}: vit-eval draws at most {MAX_DRAWN / 1e6:.0f} MB of images"
        )


def listed(classes: Sequence[str], most: int = 10) -> str:
    more = [f"… {len(classes) - most} more"] if len(classes) > most else []
    return ", ".join([*(shortened(name) for name in classes[:most]), *more])


def run_folder(checkpoint: Path) -> Path:
    """Return the folder of a checkpoint's run or, if the file was copied elsewhere, its folder.

    A model that travels with the package gets a folder of its own below outputs/.
    """
    parent = checkpoint.parent
    if parent == BUILTIN:
        own = Path("outputs", f"builtin-{checkpoint.stem}")
        own.mkdir(parents=True, exist_ok=True)
        return own
    return parent.parent if parent.name == "checkpoints" else parent
