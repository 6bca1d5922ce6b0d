"""A trained model, its metadata, and its predictions for images."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from vit_train.base.machine import memory_bytes
from vit_train.base.text import counted
from vit_train.config.data import MAX_PIXELS
from vit_train.config.fields import ImageShape, Size, as_setting
from vit_train.config.run import TrainConfig
from vit_train.data.batches import Normalize
from vit_train.data.dataset import ImagesOnDisk, Seen, Statistics
from vit_train.data.decode import BrokenImage, Reading, decoding, fit_image, read_image
from vit_train.loop.device import Precision, pick_precision
from vit_train.loop.objective import outputs, without_gradients
from vit_train.loop.tagging import THRESHOLD
from vit_train.loop.workers import make_workers
from vit_train.model.build import forward_bytes, parameter_count
from vit_train.model.features import Features
from vit_train.tasks import Task
from vit_train.trained.checkpoint import Facts

# A file, or a decoded image: of PIL, or uint8 of shape (H,W), (H,W,3) or (H,W,4).
Picture = str | Path | Image.Image | np.ndarray
# Number of images to decode before they are classified.
DECODED_AT_ONCE = 128
# Share of the memory for the images of a forward pass and their activations.
MEMORY_SHARE = 0.25


@dataclass(frozen=True)
class Prediction:
    """A prediction for one image: the most probable classes with their probabilities.

    For task=tags, `top` has all tags that reach their thresholds, and may be empty; `label` has
    their names, separated by "|", and `probability` is the highest of all tags.
    """

    label: str
    probability: float
    # The most probable classes; the first is `label`.
    top: list[tuple[str, float]]


# A prediction, or the reason why a file cannot be read.
PredictionOrError = Prediction | str


def named(image: Picture) -> str:
    return str(image) if isinstance(image, str | Path) else f"the {type(image).__name__}"


@dataclass(frozen=True)
class Meta(Facts):
    """A trained model's config, task, facts and training progress.

    `temperature` is None, and `thresholds` are {}, if they are not known for the loaded weights at
    the loaded image size.
    """

    path: Path
    config: TrainConfig
    task: Task
    image_shape: ImageShape
    statistics: Statistics
    epoch: int
    images_seen: int
    weights: str

    @property
    def all_seen(self) -> Seen | None:
        settings = {
            "image_size": as_setting(self.image_shape[1:]),
            "fit": self.fit,
            "white_level": self.white_level,
        }
        return None if self.seen is None else Seen(self.seen, settings)

    @property
    def fit(self) -> str:
        """Return how images are fitted to the model's image shape, one of FIT."""
        return getattr(self.config.data, "fit", "crop")

    @property
    def white_level(self) -> int | None:
        """Return the value that becomes white in images of more than 8 bits, or None if unknown."""
        return getattr(self.config.data, "white_level", None)

    @property
    def key(self) -> str:
        """Return the key of these weights in the calibration file.

        The key includes the checkpoint's checksum, because a later checkpoint may have the same
        file name.
        """
        return f"{self.path.name} {self.checksum[:12]}, {self.weights} weights"

    @property
    def tag_thresholds(self) -> NDArray[np.float64]:
        """Return the least probability at which each tag is predicted, (K,); only for task=tags."""
        return np.array([self.thresholds.get(name) or THRESHOLD for name in self.classes])

    def calibration_advice(self, ckpt: str | Path) -> str:
        """Return the command that calibrates the model `ckpt`, or the reason why none can."""
        if self.thresholds:
            return "vit-eval could not fit a temperature"
        if self.config.data.val != "split":
            return "the run held out no validation images"
        return (
            "to calibrate the model on the run's validation images, "
            f"run: vit-eval {shlex.quote(f'ckpt={ckpt}')} weights={self.weights}"
        )

    def require_finite(self, outputs: Tensor) -> None:
        """Raise ValueError if the model's outputs contain NaN or infinity."""
        if not outputs.isfinite().all():
            raise ValueError(
                f"{self.path}: the model's outputs contain NaN or infinity, so its weights must be "
                "damaged"
            )


class Trained(NamedTuple):
    """A trained model and its metadata; to unpack both, write `model, meta = load(...)`."""

    model: nn.Module
    meta: Meta

    def __repr__(self) -> str:
        """Return one line: the path, the number of parameters and the number of classes.

        The default of a named tuple would show the whole model and config.
        """
        return (
            f"Trained('{self.meta.path}', "
            f"{parameter_count(self.model):,} parameters, "
            f"{counted(len(self.meta.classes), 'class')})"
        )

    def preprocess(self, image: Picture) -> Tensor:
        """Return an image as the model's input: normalized float32 (C,H,W).

        An image of any size is fitted and scaled as in training (`Meta.fit`). Raise ValueError for
        an image that cannot be decoded.
        """
        try:
            pixels = self.pixels(image)
        except BrokenImage as error:
            raise ValueError(f"cannot read {named(image)}: {error}") from None
        return Normalize(self.meta.statistics).forward(pixels.unsqueeze(0))[0]

    def predict(
        self, images: Picture | Iterable[Picture], topk: int = 5
    ) -> Prediction | list[Prediction]:
        """Return the prediction for one image, or a list of the predictions for several images.

        Each prediction has the `topk` most probable classes. Probabilities are calibrated if the
        model's temperature is known. Raise ValueError for an image that cannot be decoded, and for
        a model that does not classify.
        """
        several = [images] if isinstance(images, Picture) else list(images)
        found = []
        for image, prediction in zip(several, self.stream(several, topk), strict=True):
            if isinstance(prediction, str):
                raise ValueError(f"cannot read {named(image)}: {prediction}")
            found.append(prediction)
        return found[0] if isinstance(images, Picture) else found

    def stream(
        self,
        images: Sequence[Picture],
        topk: int = 5,
        max_pixels: int = MAX_PIXELS,
        marks: dict[Path, int] | None = None,
    ) -> Iterator[PredictionOrError]:
        """Yield each image's prediction or, for an image that cannot be decoded, the reason.

        Only a few images are in memory at a time. Files that can be read but look faulty, for
        example because an image has only one color, are added to `marks`, if given. Raise
        ValueError if the model does not classify.
        """
        if not self.meta.task.needs_labels:
            raise ValueError(
                f"task={self.meta.config.task.name} does not classify images: choose a classifier"
            )
        at_once = min(DECODED_AT_ONCE, self.at_once)
        for first in range(0, len(images), at_once):
            read: list[Tensor | str] = []
            for image in images[first : first + at_once]:
                try:
                    read.append(self.pixels(image, max_pixels, marks))
                except BrokenImage as error:
                    read.append(str(error))
            decoded = [each for each in read if isinstance(each, Tensor)]
            predictions = iter(self.classify(torch.stack(decoded), topk) if decoded else ())
            yield from (each if isinstance(each, str) else next(predictions) for each in read)

    def features(
        self, images: Picture | Iterable[Picture] | Tensor, layer: int = -1, tokens: str = "auto"
    ) -> Tensor:
        """Return the features, float32 on the CPU: (D,) of one image, (N,D) of several.

        Images are as for `predict`, or a tensor (C,H,W) or (N,C,H,W) of the model's image shape: of
        pixels, uint8, or of floats, normalized as by `preprocess`. `layer` and `tokens` are as in
        `vit_train.model.features.Features`. Raise ValueError for images that do not fit or cannot
        be decoded, and for a layer or token that the model does not have.
        """
        if isinstance(images, Picture):
            return self.features([images], layer, tokens)[0]
        if isinstance(images, Tensor) and images.ndim == 3:
            return self.features(images.unsqueeze(0), layer, tokens)[0]
        model = Features(self.model, layer, tokens)
        compute = without_gradients(lambda batch: model.forward(batch).float(), self.precision)
        with make_workers(model, self.precision, DECODED_AT_ONCE, most=self.at_once) as workers:
            found = outputs(model, compute, self.batches(images), workers)
        self.meta.require_finite(found)
        return found

    def batches(self, images: Iterable[Picture] | Tensor) -> Iterator[tuple[Tensor]]:
        """Yield normalized images (B,C,H,W), a few at a time; raise ValueError if one does not fit.

        Of no images, yield one empty batch.
        """
        shape = self.meta.image_shape
        if not isinstance(images, Tensor | ImagesOnDisk):
            images = list(images) or torch.empty(0, *shape)
        at_once = min(DECODED_AT_ONCE, self.at_once)
        for first in range(0, len(images) or 1, at_once):
            part = images[first : first + at_once]
            batch = part if isinstance(part, Tensor) else torch.stack([*map(self.preprocess, part)])
            floats = batch.is_floating_point()
            if batch.shape[1:] != shape or not (floats or batch.dtype == torch.uint8):
                raise ValueError(
                    f"expected images (N, {', '.join(map(str, shape))}), uint8 or normalized "
                    f"floats, got {(len(images), *batch.shape[1:])}, "
                    f"{str(batch.dtype).removeprefix('torch.')}"
                )
            batch = batch.to(self.device)
            yield (batch.float() if floats else self.normalize(batch),)

    def pixels(
        self,
        image: Picture,
        max_pixels: int = MAX_PIXELS,
        marks: dict[Path, int] | None = None,
        size: Size | None = None,
    ) -> Tensor:
        """Return an image as uint8 (C,H,W), at `size` or, if None, at the model's image size.

        Raise BrokenImage if the image cannot be decoded.
        """
        meta = self.meta
        reading = Reading(size or meta.image_shape[1:], meta.fit, meta.white_level, max_pixels)
        with decoding():
            if isinstance(image, str | Path):
                pixels, mark = read_image(Path(image), reading)
                if marks is not None and mark:
                    marks[Path(image)] = mark
            else:
                opened = image if isinstance(image, Image.Image) else Image.fromarray(image)
                pixels, _ = fit_image(opened, reading)
        return torch.from_numpy(pixels)

    def classify(self, pixels: Tensor, topk: int) -> list[Prediction]:
        """Return the predictions for uint8 images (B,C,H,W), computed on the model's device.

        Images are split into micro-batches as in vit-eval.
        """
        normalize = self.normalize
        precision = self.precision
        with make_workers(self.model, precision, len(pixels), most=self.at_once) as workers:
            parts = workers.map(
                lambda part: self.probabilities(normalize(part), precision), pixels.to(self.device)
            )
            probabilities = torch.cat(list(parts)).cpu()
        return [self.prediction(row, topk) for row in probabilities.tolist()]

    def prediction(self, probabilities: list[float], topk: int) -> Prediction:
        """Return the prediction with these probabilities of the classes or tags."""
        chances = sorted(
            zip(self.meta.classes, probabilities, strict=True), key=lambda pair: -pair[1]
        )
        if self.meta.task.one_class:
            top = chances[:topk]
            label = chances[0][0]
        else:
            thresholds = dict(zip(self.meta.classes, self.meta.tag_thresholds, strict=True))
            top = [(name, chance) for name, chance in chances if chance >= thresholds[name]]
            label = "|".join(name for name, _ in top)
        return Prediction(label, chances[0][1], top)

    @torch.no_grad()
    def probabilities(self, images: Tensor, precision: Precision) -> Tensor:
        """Return the class probabilities (B,K), float64, of normalized images (B,C,H,W).

        The images must be on the model's device.
        """
        with precision.autocast():
            logits: Tensor = self.model.forward(images).double()
        self.meta.require_finite(logits)
        if not self.meta.task.one_class:
            return logits.sigmoid()
        return (logits / (self.meta.temperature or 1.0)).softmax(dim=1)

    @property
    def at_once(self) -> int:
        """Return how many images a forward pass can take within MEMORY_SHARE of the memory.

        On a GPU, the memory is the free memory of this GPU; otherwise, it is the RAM.
        """
        each = forward_bytes(self.meta.config.model, self.meta.image_shape)
        memory = memory_bytes()
        if self.device.type == "cuda":
            memory = torch.cuda.mem_get_info(self.device)[0]
        # Memory counts as infinite if the system does not report it.
        return max(1, int(min(MEMORY_SHARE * memory / each, 1e9)))

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def normalize(self) -> Normalize:
        """Return the normalization used in training, as a module on the model's device."""
        return Normalize(self.meta.statistics, self.device)

    @property
    def precision(self) -> Precision:
        """Return the run's precision, or another if the run's does not suit the device.

        For a run in bf16, return the fastest of bf16, fp16 and fp32 on this device. For a run in
        any other precision, return fp32 if the device does not support the run's precision.
        """
        name = self.meta.config.precision
        try:
            return self.in_precision("auto" if name == "bf16" else name)
        except ValueError:
            return self.in_precision("fp32")

    def in_precision(self, name: str) -> Precision:
        """Return the precision called `name`, as `pick_precision` does."""
        return pick_precision(name, self.device, self.model, self.meta.task.example_inputs())
