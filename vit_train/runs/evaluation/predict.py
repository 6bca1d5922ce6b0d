"""`vit-predict` after its arguments are accepted: classify files, tell what they are."""

import contextlib
import logging
import shlex
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from vit_train.data.doubts import Doubts
from vit_train.data.images import BrokenImage
from vit_train.data.paths import image_files
from vit_train.engine.device import keep_freed_memory, pick_device
from vit_train.report.predicted import shown, terminal_line, written_to
from vit_train.runs.config import PredictConfig
from vit_train.runs.evaluation.explainer import Explainer
from vit_train.runs.load import load
from vit_train.runs.paths import run_folder
from vit_train.runs.trained import Meta
from vit_train.text import counted

logger = logging.getLogger(__name__)
# Lines on the terminal if everything also goes to a file.
SHOWN = 10
# Images that are drawn with what raised the answer.
DRAWN = 24
# Characters of a path that are shown.
WIDTH = 60


def predict_images(config: PredictConfig) -> None:
    """Classify all images, print a line for each and write them to `config.out`.

    Raise ValueError if there are none, or if none of them can be read.
    """
    keep_freed_memory()
    trained = load(config.ckpt, pick_device(config.device), config.weights)
    explainer = Explainer(trained) if config.overlay else None
    paths = image_files(config.images)
    sheet = overlay_file(config, trained.meta.path, paths)
    doubts = Doubts()
    said = trained.stream(paths, config.topk, config.max_pixels, doubts)
    failures: list[str] = []
    width = min(WIDTH, max(len(shown(path)) for path in paths))
    with written_to(config.out, min(config.topk, len(trained.meta.classes))) as write:
        for number, (path, answer) in enumerate(zip(paths, said, strict=True)):
            write(path, answer)
            if isinstance(answer, str):
                failures.append(answer)
            if config.out is None or number < SHOWN:
                logger.info(terminal_line(path, answer, width))
    if len(failures) == len(paths):
        none = "the image cannot" if len(paths) == 1 else f"none of the {len(paths):,} images can"
        raise ValueError(f"{none} be read: {failures[0]}")
    doubts.warn()
    report(config, len(paths), len(failures), trained.meta)
    if explainer is not None:
        draw_overlays(sheet, config, explainer, paths)
        logger.info(f"pictures of what raised the predicted class: {sheet}")


def overlay_file(config: PredictConfig, checkpoint: Path, paths: Sequence[Path]) -> Path:
    """Return the file for the overlays; raise ValueError if it is one of the images."""
    if config.out is None:
        sheet = run_folder(checkpoint) / "predicted.png"
    else:
        out = Path(config.out)
        sheet = out.with_name(f"{out.stem}-maps.png")
    if config.overlay and sheet.resolve() in {path.resolve() for path in paths}:
        raise ValueError(f"overlay=true would replace the image {sheet}: choose out=")
    return sheet


def draw_overlays(
    sheet: Path, config: PredictConfig, explainer: Explainer, paths: Sequence[Path]
) -> None:
    """Draw the first images that can be read, with what of them raised the predicted class."""
    trained = explainer.trained
    images: dict[Path, Tensor] = {}
    for path in paths:
        if len(images) == DRAWN:
            break
        with contextlib.suppress(BrokenImage):
            images[path] = trained.pixels(path, config.max_pixels)
    sheet.parent.mkdir(parents=True, exist_ok=True)  # outputs/builtin-NAME may not exist yet
    explainer.draw_maps(sheet, torch.stack(list(images.values())), [path.name for path in images])


def report(config: PredictConfig, count: int, failures: int, meta: Meta) -> None:
    """Say what is where, what failed, and what the probabilities are worth."""
    if config.out is not None:
        more = f", of which the first {SHOWN} are shown" if count > SHOWN else ""
        logger.info(f"{counted(count, 'image')}{more}: {config.out}")
    if failures:
        logger.warning(f"{failures:,} of {count:,} images cannot be read")
    if meta.temperature is not None:
        logger.info(f"probabilities are calibrated with a temperature of {meta.temperature:.2f}")
    elif meta.config.data.val == "split":
        weights = "" if config.weights == "auto" else f" weights={config.weights}"
        logger.info(
            f"probabilities are not calibrated: vit-eval {shlex.quote(f'ckpt={config.ckpt}')}"
            f"{weights} calibrates them once, from the run's validation images"
        )
    else:
        logger.info("probabilities are not calibrated: the run set no validation images apart")
