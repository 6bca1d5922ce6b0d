"""A loaded model on sets of images: plain, mirrored, corrupted; and its temperature."""

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vit_train.base.memory import require_memory
from vit_train.base.text import counted
from vit_train.base.writing import write_json
from vit_train.data.batches import EvalBatches
from vit_train.data.dataset import ImageSet
from vit_train.engine.metrics import Answers, Classification, Evaluation
from vit_train.engine.objective import evaluate
from vit_train.engine.precision import Precision
from vit_train.engine.workers import make_workers
from vit_train.figures.confidence import COLDEST, fitted_temperature
from vit_train.figures.measures import result_line
from vit_train.runs.paths import calibration_file
from vit_train.runs.trained import Meta, Trained, noted_temperatures, temperature_key

logger = logging.getLogger(__name__)

SEVERITIES = 5
# The images' width in CIFAR-10-C.
WIDTH = 32


def gaussian_noise(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    std = (0.04, 0.06, 0.08, 0.09, 0.10)[severity]
    return x + std * torch.randn(x.shape, generator=generator)


def shot_noise(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Count photons: at each pixel a Poisson number with this many for white."""
    white = (500, 250, 100, 75, 50)[severity]
    return torch.poisson(x * white, generator=generator) / white


def impulse_noise(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Set this share of all values to black or white."""
    share = (0.01, 0.02, 0.03, 0.05, 0.07)[severity]
    drawn = torch.rand(x.shape, generator=generator)
    return x.masked_fill(drawn < share / 2, 0).masked_fill(drawn > 1 - share / 2, 1)


def gaussian_blur(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Blur by a Gaussian that is cut off at four standard deviations."""
    std = (0.4, 0.6, 0.7, 0.8, 1.0)[severity] * x.shape[-1] / WIDTH
    reach = int(4 * std + 0.5)
    places = torch.arange(-reach, reach + 1)
    kernel = torch.exp(-(places**2) / (2 * std**2))
    kernel = (kernel / kernel.sum()).view(1, 1, -1, 1)
    padded = F.pad(x, (reach, reach, reach, reach), mode="replicate").flatten(0, 1).unsqueeze(1)
    return F.conv2d(F.conv2d(padded, kernel), kernel.mT).view(x.shape)


def pixelate(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Replace each pixel by the mean of those whose centers are in the same larger one."""
    size = x.shape[-1]
    side = max(1, int(size * (0.95, 0.9, 0.85, 0.75, 0.65)[severity]))
    larger = ((torch.arange(size) + 0.5) * side / size).ceil().long() - 1
    members = F.one_hot(larger, side).T.float()  # (side,size)
    means = members / members.sum(1, keepdim=True)
    return F.interpolate(means @ x @ means.T, (size, size), mode="nearest-exact")


def brightness(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Raise the value of HSV, the largest channel, and keep hue and saturation."""
    value = x.amax(1, keepdim=True)
    raised = (value + (0.05, 0.1, 0.15, 0.2, 0.3)[severity]).clamp(max=1)
    return torch.where(value > 0, x * raised / value, raised)


def darkness(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    return x * (0.75, 0.6, 0.45, 0.3, 0.18)[severity]


def contrast(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Bring each channel closer to its mean over the image."""
    mean = x.mean(dim=(2, 3), keepdim=True)
    return mean + (x - mean) * (0.75, 0.5, 0.4, 0.3, 0.15)[severity]


CORRUPTIONS: dict[str, Callable[[Tensor, int, torch.Generator], Tensor]] = {
    "gaussian noise": gaussian_noise,
    "shot noise": shot_noise,
    "impulse noise": impulse_noise,
    "gaussian blur": gaussian_blur,
    "pixelate": pixelate,
    "brightness": brightness,
    "darkness": darkness,
    "contrast": contrast,
}


# Pixel values that are corrupted at once: a thousand images of 32×32.
VALUES = 1000 * 3 * 32**2


def corrupted(images: Tensor, name: str, severity: int) -> Tensor:
    """Corrupt uint8 images (N,3,S,S), always in the same way; `severity` is 1 to 5."""
    generator = torch.Generator().manual_seed(1000 * list(CORRUPTIONS).index(name) + severity)
    chunks = [
        CORRUPTIONS[name](chunk.float() / 255, severity - 1, generator).mul(255).round_()
        for chunk in images.split(max(1, VALUES // images[0].numel()))
    ]
    return torch.cat([chunk.clamp_(0, 255).to(torch.uint8) for chunk in chunks])


# Of an image and a class: the logit and its log-softmax in float64, and what sorting them takes.
LOGIT_BYTES = 40
# Evaluates a model on a set of images, always in the same way: `measure` with its first arguments.
Measure = Callable[[ImageSet], Evaluation]


def measure(
    trained: Trained, precision: Precision, batch_size: int, images: ImageSet
) -> Evaluation:
    """Evaluate a loaded model on a set of images."""
    model, meta = trained
    classes = len(meta.classes) if meta.task.needs_labels else 1
    require_memory(
        len(images) * classes * LOGIT_BYTES,
        f"the predictions for {counted(len(images), 'image')} and {classes:,} classes",
        "evaluate fewer images, data.test_subset=N",
    )
    batches = EvalBatches(images, trained.normalize, batch_size, precision.device)
    with make_workers(model, precision, batch_size, most=trained.at_once) as workers:
        loader = meta.task.eval_loader(batches)
        return evaluate(model, meta.task, loader, precision, workers)


def classification(measure: Measure, images: ImageSet) -> Classification:
    result = measure(images)
    assert isinstance(result, Classification)
    return result


def temperature(
    measure: Measure, meta: Meta, split: str, images: ImageSet | None, note: bool
) -> float | None:
    """Fit the temperature of a classifier on its run's validation `images`.

    Return None if there are none beside those that are evaluated. `note` it in the run's folder, if
    these are all of them.
    """
    beside = meta.config.data.val == "split" and split != "val"
    if not beside or not meta.task.needs_labels:
        return None
    if images is None:
        logger.info("no temperature is fitted: that takes the run's own validation images")
        return None
    fitted = fitted_temperature(classification(measure, images).answers)
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


def flipped(measure: Measure, images: ImageSet, plain: Answers) -> Classification:
    """Evaluate the mean of each image's and its mirror image's probabilities."""
    mirrored = classification(measure, replace(images, images=images.images.flip(3))).answers
    both = np.logaddexp(plain.log_probabilities, mirrored.log_probabilities)
    result = Classification.of(Answers(plain.labels, both - np.log(2)))
    logger.info(f"with the mirror images, tta=flip: {result_line(result)}")
    return result


def robustness(measure: Measure, images: ImageSet) -> dict[str, list[float]]:
    """Return the accuracy on corrupted images, by corruption, at each severity."""
    found: dict[str, list[float]] = {}
    for name in CORRUPTIONS:
        for severity in range(1, SEVERITIES + 1):
            worse = replace(images, images=corrupted(images.images, name, severity))
            found.setdefault(name, []).append(classification(measure, worse).acc)
        logger.info(f"{name}: {', '.join(f'{acc:.1%}' for acc in found[name])}")
    return found
