"""`vit-predict`: classify image files, and print or write the predictions."""

import contextlib
import json
import logging
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit_train.base.text import CLASS_NAME, counted, csv_text, printable, shortened
from vit_train.base.writing import replacing
from vit_train.data.image_files import Doubts, image_files
from vit_train.data.images import BrokenImage
from vit_train.engine.precision import keep_freed_memory, pick_device
from vit_train.explain.explainer import Explainer
from vit_train.runs.load import load
from vit_train.runs.paths import run_folder
from vit_train.runs.settings import PredictConfig
from vit_train.runs.trained import Meta, PredictionOrError

logger = logging.getLogger(__name__)


def shown(path: Path) -> str:
    return printable(str(path))


def terminal_line(path: Path, prediction: PredictionOrError, width: int) -> str:
    """Format what was predicted for a file, for the terminal."""
    name = shown(path)
    if len(name) > width and sys.stdout.isatty():  # the end says more than the beginning
        name = f"…{name[1 - width :]}"
    if isinstance(prediction, str):
        return f"{name:<{width}}  cannot be read: {printable(prediction)}"
    classes = (f"{shortened(label, CLASS_NAME)} {chance:.1%}" for label, chance in prediction.top)
    return f"{name:<{width}}  {'  '.join(classes)}"


@contextmanager
def written_to(out: str | None, topk: int) -> Iterator[Callable[[Path, PredictionOrError], object]]:
    """Yield a function that writes a row; the file, CSV or JSON lines, is complete or absent.

    Without `out` nothing is written.
    """
    if out is None:
        yield lambda path, prediction: None
        return
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    with replacing(Path(out)) as file:
        if out.endswith(".jsonl"):
            yield lambda path, prediction: file.write(json_line(path, prediction).encode())
            return
        header = ["image", "predicted", "probability"]
        for place in range(2, topk + 1):
            header += [f"predicted_{place}", f"probability_{place}"]
        file.write(csv_text([[*header, "error"]]).encode())
        yield lambda path, prediction: file.write(
            csv_text([cells(path, prediction, topk)]).encode()
        )


def cells(path: Path, prediction: PredictionOrError, topk: int) -> Iterable[str]:
    yield shown(path)
    if isinstance(prediction, str):
        yield from [""] * (2 * topk)
        yield printable(prediction)
        return
    for label, chance in prediction.top:
        yield printable(label)
        yield f"{chance:.6f}"
    yield ""


def json_line(path: Path, prediction: PredictionOrError) -> str:
    content: dict[str, Any] = {"image": shown(path)}
    if isinstance(prediction, str):
        content["error"] = printable(prediction)
    else:
        content |= {"predicted": prediction.label, "probability": round(prediction.probability, 6)}
        content["top"] = [[label, round(chance, 6)] for label, chance in prediction.top]
    return json.dumps(content, allow_nan=False) + "\n"


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
