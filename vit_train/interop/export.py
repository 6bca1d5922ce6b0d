"""`vit-export`: write a trained model in another format, and check that it answers the same."""

import logging
import time
from collections.abc import Iterator
from importlib import util
from pathlib import Path

import torch
from torch import Tensor

from vit_train.engine.precision import keep_freed_memory
from vit_train.files.text import reason
from vit_train.files.writing import make_folder, require_own_folder
from vit_train.interop.deployed import Deployed, deployed
from vit_train.interop.formats import WRITERS, Answer, Format
from vit_train.interop.model_card import model_card
from vit_train.runs.images import evaluated_images
from vit_train.runs.load import load
from vit_train.runs.paths import run_folder
from vit_train.runs.settings import ExportConfig

logger = logging.getLogger(__name__)

RANDOM_IMAGES, BATCH = 256, 50
# The largest difference of logits that counts as rounding, in the largest logit.
TOLERANCE = 1e-4


def export(config: ExportConfig) -> Path:
    """Write the model; return the path.

    Raise ValueError if the format cannot hold the model or misses a package, or if what was written
    answers otherwise than the model; nothing is left then.
    """
    keep_freed_memory()
    chosen = WRITERS[config.format]
    require_packages(chosen, config.format)
    if chosen.suffix and config.out is not None and Path(config.out).suffix != chosen.suffix:
        raise ValueError(f"out={config.out} must end in {chosen.suffix} for format={config.format}")
    model = deployed(
        load(config.ckpt, "cpu", config.weights, config.data.image_size), config.normalize
    )
    require_room_for(model, chosen, config.format)
    name = f"model{chosen.suffix}" if chosen.suffix else config.format
    out = Path(config.out or run_folder(model.meta.path) / "export" / name)
    if out.resolve() == model.meta.path.resolve():
        raise ValueError(f"out={out} is the checkpoint itself: choose another name")
    if config.out is None:  # in the folder of a run that somebody else may have made
        require_own_folder(out.parent)
    make_folder(out.parent)
    sets = dict(image_sets(config, model))

    def check(answer: Answer) -> str:
        said = [compared(model, answer, name, images) for name, images in sets.items()]
        return model_card(model, chosen, out.name, said)

    chosen.write(model, out, check)
    logger.info(f"written: {out}")
    return out


def require_room_for(model: Deployed, chosen: Format, name: str) -> None:
    """Raise ValueError, naming settings and formats, if a format cannot hold the model."""
    if refused := chosen.refused(model):
        *others, last = (other for other, each in WRITERS.items() if not each.refused(model))
        raise ValueError(
            f"format={name} has no place for {', '.join(refused)}: choose "
            f"format={', '.join(others)} or {last}"
        )


def require_packages(chosen: Format, name: str) -> None:
    missing = [package for package in chosen.needs if util.find_spec(package) is None]
    if missing:
        raise ValueError(
            f"format={name} needs {', '.join(missing)}: pip install -e '.[export]' in the checkout "
            "(format=torch needs nothing more)"
        )


def image_sets(config: ExportConfig, model: Deployed) -> Iterator[tuple[str, Tensor]]:
    """Yield images, uint8 (N,C,S,S), with what they are: random ones, and the run's test images."""
    generator = torch.Generator().manual_seed(0)
    shape = (RANDOM_IMAGES, *model.meta.image_shape)
    yield "random images", torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    try:
        (images, *_), _ = evaluated_images(config.data, "test", model.meta)
    except (ValueError, OSError) as error:
        logger.info(f"not checked on test images: {reason(error)}")
        return
    yield "test images", images.images


def agreement(expected: Tensor, given: Tensor) -> tuple[int, float]:
    """Return on how many images logits (N,K) name the same class, and how far they differ.

    Classes that differ by rounding alone are the same. The difference is relative to the largest
    logit.
    """
    chosen = expected.gather(1, given.argmax(1, keepdim=True)).squeeze(1)
    same = expected.amax(1) - chosen <= TOLERANCE * expected.abs().amax(1)
    difference = (expected - given).abs().max().nan_to_num(torch.inf).item()
    return int(same.sum()), difference / expected.abs().max().item() if difference else 0.0


@torch.no_grad()
def compared(model: Deployed, answer: Answer, name: str, images: Tensor) -> str:
    """Compare an export's answers with the model's; return the figures in words.

    Raise ValueError if they differ by more than rounding.
    """
    normalize, seconds = model.trained.normalize, 0.0
    all_expected, all_given = [], []
    for batch in images.split(BATCH):
        pixels = normalize(batch)
        expected = model.trained.model(pixels)
        model.meta.require_finite(expected)
        began = time.perf_counter()
        given = answer(batch if model.normalize else pixels)
        seconds += time.perf_counter() - began
        if given.shape != expected.shape:
            raise ValueError(
                f"the export answers {tuple(given.shape)}, not {tuple(expected.shape)}"
            )
        all_expected.append(expected)
        all_given.append(given)
    same, difference = agreement(torch.cat(all_expected), torch.cat(all_given))
    said = (
        f"the same top-1 on {same:,} of {len(images):,} {name}, logits to {difference:.1e} of the "
        "largest"
    )
    if same < len(images) or difference > TOLERANCE:
        raise ValueError(f"the export answers otherwise, so it is not kept: {said}")
    speed = f"; {len(images) / seconds:,.0f} images a second in batches of {BATCH}"
    logger.info(f"checked: {said}{speed if len(images) >= 2 * BATCH else ''}")
    return said
