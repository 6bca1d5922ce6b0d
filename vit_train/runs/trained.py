"""A trained model that classifies images."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vit_train.base.memory import memory_bytes
from vit_train.base.text import counted
from vit_train.data.batches import Normalize
from vit_train.data.config import MAX_PIXELS
from vit_train.data.dataset import Seen, Statistics
from vit_train.data.image_files import BrokenImage, Doubts, decoding, read_image, square
from vit_train.engine.precision import Precision, pick_precision
from vit_train.engine.workers import make_workers
from vit_train.model.build import forward_bytes
from vit_train.runs.config import TrainConfig
from vit_train.tasks.task import Task

# A file, or an image that is already decoded: of PIL, or uint8 of shape (H,W), (H,W,3) or (H,W,4).
Picture = str | Path | Image.Image | np.ndarray
# Images that are decoded before they are classified.
AT_ONCE = 128
# Share of the memory for the images of a forward pass and their activations.
SHARE = 0.25


@dataclass(frozen=True)
class Prediction:
    """A prediction for an image: the most probable classes with their probabilities."""

    label: str
    probability: float
    # The most probable classes, the first of which is `label`.
    top: list[tuple[str, float]]


# The answer to a file, or why the file cannot be read.
PredictionOrError = Prediction | str


def named(image: Picture) -> str:
    return str(image) if isinstance(image, str | Path) else f"the {type(image).__name__}"


@dataclass(frozen=True)
class Meta:
    """A trained model's config, task, classes and training progress."""

    path: Path
    config: TrainConfig
    task: Task
    classes: list[str]
    image_shape: tuple[int, int, int]
    statistics: Statistics
    epoch: int
    step: int
    images_seen: int
    weights: str
    versions: dict[str, str]
    # Of the run's training, validation and test images.
    fingerprint: str
    # Keys of the images that it or a model that it learned from was trained or validated on, and
    # of the latter's alone, if they are known.
    seen: Tensor | None
    seen_before: Tensor | None
    # The checksum of the checkpoint.
    checksum: str
    # Divide logits by this for calibrated probabilities; None if it is not known.
    temperature: float | None = None

    @property
    def all_seen(self) -> Seen | None:
        return None if self.seen is None else Seen(self.seen, self.image_shape[-1])

    def require_finite(self, answers: Tensor) -> None:
        """Raise ValueError if the model predicts NaN or infinity."""
        if not answers.isfinite().all():
            raise ValueError(f"{self.path} answers with NaN: its weights are damaged")


class Trained(NamedTuple):
    """A trained model and its metadata; `model, meta = load(...)` takes it apart."""

    model: nn.Module
    meta: Meta

    def __repr__(self) -> str:
        """Return one line; that of a named tuple would be the whole model and its config."""
        count = sum(each.numel() for each in self.model.parameters())
        classes = counted(len(self.meta.classes), "class")
        return f"Trained('{self.meta.path}', {count:,} parameters, {classes})"

    def preprocess(self, image: Picture) -> Tensor:
        """Return an image as the model reads it: normalized float32 (C,S,S).

        Images of any size are scaled and center-cropped to the size that the model takes.
        Raise ValueError for what cannot be decoded.
        """
        try:
            pixels = self.pixels(image)
        except BrokenImage as error:
            raise ValueError(f"cannot read {named(image)}: {error}") from None
        return Normalize(self.meta.statistics).forward(pixels.unsqueeze(0))[0]

    def predict(
        self, images: Picture | Iterable[Picture], topk: int = 5
    ) -> Prediction | list[Prediction]:
        """Classify one image, or each of several.

        The probabilities are calibrated if the model's temperature is known. Raise ValueError for
        an image that cannot be decoded, and for a model that does not classify.
        """
        if topk < 1:
            raise ValueError(f"topk={topk} must be at least 1")
        several = [images] if isinstance(images, Picture) else list(images)
        found = []
        for image, said in zip(several, self.stream(several, topk), strict=True):
            if isinstance(said, str):
                raise ValueError(f"cannot read {named(image)}: {said}")
            found.append(said)
        return found[0] if isinstance(images, Picture) else found

    def stream(
        self,
        images: Sequence[Picture],
        topk: int = 5,
        max_pixels: int = MAX_PIXELS,
        doubts: Doubts | None = None,
    ) -> Iterator[PredictionOrError]:
        """Yield the prediction for each image or, if it cannot be decoded, the reason.

        Only a few images are held at a time. Note in `doubts` what may be wrong with files.
        """
        if not self.meta.task.needs_labels:
            raise ValueError(f"task={self.meta.config.task.name} does not classify images")
        at_once = min(AT_ONCE, self.at_once)
        for first in range(0, len(images), at_once):
            read, broken = [], {}
            for number, image in enumerate(images[first : first + at_once]):
                try:
                    read.append(self.pixels(image, max_pixels, doubts))
                except BrokenImage as error:
                    broken[number] = f"{error}"
            said = iter(self.classify(torch.stack(read), topk) if read else [])
            for number in range(len(read) + len(broken)):
                yield broken[number] if number in broken else next(said)

    def pixels(
        self, image: Picture, max_pixels: int = MAX_PIXELS, doubts: Doubts | None = None
    ) -> Tensor:
        """Return an image at the model's size, uint8 (C,S,S); raise BrokenImage if that fails."""
        size = self.meta.image_shape[1]
        with decoding():
            if isinstance(image, str | Path):
                pixels, lost = read_image(Path(image), size, max_pixels)
            else:
                opened = image if isinstance(image, Image.Image) else Image.fromarray(image)
                pixels, lost = square(opened, size), 0.0
        tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
        if doubts is not None and isinstance(image, str | Path):
            doubts.note([Path(image)], tensor[None], [lost])
        return tensor

    def classify(self, pixels: Tensor, topk: int) -> list[Prediction]:
        """Classify images uint8 (B,C,S,S) on the model's device, as many at once as vit-eval."""
        normalize, precision = self.normalize, self.precision

        def answers(images: Tensor) -> Tensor:
            return self.probabilities(normalize(images), precision)

        workers = make_workers(self.model, precision, len(pixels), most=self.at_once)
        with workers:
            probabilities = torch.cat(list(workers.map(answers, pixels.to(self.device)))).cpu()
        best = probabilities.topk(min(topk, probabilities.shape[1]), dim=1)
        names = self.meta.classes
        return [
            Prediction(
                names[labels[0]],
                values[0],
                [(names[label], value) for label, value in zip(labels, values, strict=True)],
            )
            for labels, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    @torch.no_grad()
    def probabilities(self, images: Tensor, precision: Precision | None = None) -> Tensor:
        """Return those (B,K), float64, of normalized images on the model's device.

        They are computed in the model's own precision unless another one is given.
        """
        with (precision or self.precision).autocast():
            logits: Tensor = self.model.forward(images).double()
        self.meta.require_finite(logits)
        return (logits / (self.meta.temperature or 1.0)).softmax(dim=1)

    @property
    def at_once(self) -> int:
        """Return how many images a share of the memory can hold in a forward pass, at least one."""
        each = forward_bytes(self.meta.config.model, self.meta.image_shape)
        return max(1, int(min(SHARE * memory_bytes(), sys.maxsize) // each))

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def normalize(self) -> Normalize:
        """Return the normalization of training, on the model's device."""
        return Normalize(self.meta.statistics, self.device)

    @property
    def precision(self) -> Precision:
        """Return the precision of training or fp32, if this device lacks it or is slow in it."""
        name = self.meta.config.precision
        if name == "bf16":
            name = "auto"
        elif name == "auto" and self.device.type == "cpu":
            name = "fp32"  # as it was on every CPU in versions that stored auto
        try:
            return pick_precision(name, self.device, self.model)
        except ValueError:
            return pick_precision("fp32", self.device, self.model)
