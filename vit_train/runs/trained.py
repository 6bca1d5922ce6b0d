"""A trained model, rebuilt from a checkpoint file alone, and its predictions for images."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from vit_train.base.memory import memory_bytes, require_memory
from vit_train.base.reading import Refused, read_object, typed
from vit_train.base.setting import Size, in_pixels, shortest, sides, size_of
from vit_train.base.text import counted
from vit_train.data.batches import Normalize
from vit_train.data.config import MAX_PIXELS
from vit_train.data.dataset import Seen, Statistics
from vit_train.data.decode import BrokenImage, Doubts, Reading, decoding, fitted, read_image
from vit_train.engine.precision import Precision, pick_precision
from vit_train.engine.state import State
from vit_train.engine.tagging import THRESHOLD
from vit_train.engine.workers import make_workers
from vit_train.model.build import bytes_of, forward_bytes, on_meta, require_few_patches
from vit_train.model.config import ViTConfig
from vit_train.model.patches import grid_of
from vit_train.model.pos_embed import PositionEmbedding, resize_positions
from vit_train.model.vit import Encoder
from vit_train.runs.checkpoint import Checkpoint, Facts
from vit_train.runs.config import CONTINUED, PREDICTING, TrainConfig, from_checkpoint
from vit_train.runs.paths import builtin_checkpoint, calibration_file, checkpoint_at, run_at
from vit_train.runs.settings import WEIGHTS
from vit_train.tasks.make import make_task
from vit_train.tasks.task import Task

# Number of channels of all images.
CHANNELS = 3
# Range of plausible temperatures; dividing logits by others could overflow.
LEAST, MOST = 1e-3, 1e3
# A file, or a decoded image: of PIL, or uint8 of shape (H,W), (H,W,3) or (H,W,4).
Picture = str | Path | Image.Image | np.ndarray
# Number of images to decode before they are classified.
AT_ONCE = 128
# Share of the memory for the images of a forward pass and their activations.
SHARE = 0.25


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
    image_shape: tuple[int, int, int]
    statistics: Statistics
    epoch: int
    step: int
    images_seen: int
    weights: str

    @property
    def all_seen(self) -> Seen | None:
        return None if self.seen is None else Seen(self.seen, shortest(self.image_shape[1:]))

    @property
    def fit(self) -> str:
        """Return how images of another shape take the model's, one of FIT."""
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
            f"{sum(each.numel() for each in self.model.parameters()):,} parameters, "
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
        doubts: Doubts | None = None,
    ) -> Iterator[PredictionOrError]:
        """Yield each image's prediction or, for an image that cannot be decoded, the reason.

        Only a few images are in memory at a time. Files that can be read but look faulty, for
        example because an image has only one color, are added to `doubts`, if given. Raise
        ValueError if the model does not classify.
        """
        if not self.meta.task.needs_labels:
            raise ValueError(
                f"task={self.meta.config.task.name} does not classify images: choose a classifier"
            )
        at_once = min(AT_ONCE, self.at_once)
        for first in range(0, len(images), at_once):
            read: list[Tensor | str] = []
            for image in images[first : first + at_once]:
                try:
                    read.append(self.pixels(image, max_pixels, doubts))
                except BrokenImage as error:
                    read.append(str(error))
            decoded = [each for each in read if isinstance(each, Tensor)]
            predictions = iter(self.classify(torch.stack(decoded), topk) if decoded else ())
            yield from (each if isinstance(each, str) else next(predictions) for each in read)

    def pixels(
        self,
        image: Picture,
        max_pixels: int = MAX_PIXELS,
        doubts: Doubts | None = None,
        size: Size | None = None,
    ) -> Tensor:
        """Return an image as uint8 (C,H,W), at `size` or, if None, at the model's image size.

        Raise BrokenImage if the image cannot be decoded.
        """
        meta = self.meta
        reading = Reading(size or meta.image_shape[1:], meta.fit, meta.white_level, max_pixels)
        with decoding():
            if isinstance(image, str | Path):
                pixels, lost = read_image(Path(image), reading)
            else:
                opened = image if isinstance(image, Image.Image) else Image.fromarray(image)
                pixels, lost = fitted(opened, reading)
        tensor = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
        if doubts is not None and isinstance(image, str | Path):
            doubts.note([Path(image)], tensor[None], [lost])
        return tensor

    def classify(self, pixels: Tensor, topk: int) -> list[Prediction]:
        """Return the predictions for uint8 images (B,C,H,W), computed on the model's device.

        Images are split into micro-batches as in vit-eval.
        """
        normalize, precision = self.normalize, self.precision
        with make_workers(self.model, precision, len(pixels), most=self.at_once) as workers:
            parts = workers.map(
                lambda part: self.probabilities(normalize(part), precision), pixels.to(self.device)
            )
            probabilities = torch.cat(list(parts)).cpu()
        if not self.meta.task.one_class:
            return [tagged(each, self.meta) for each in probabilities]
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
        """Return the class probabilities (B,K), float64, of normalized images (B,C,H,W).

        The images must be on the model's device. Without `precision`, use `self.precision`.
        """
        with (precision or self.precision).autocast():
            logits: Tensor = self.model.forward(images).double()
        self.meta.require_finite(logits)
        if not self.meta.task.one_class:
            return logits.sigmoid()
        return (logits / (self.meta.temperature or 1.0)).softmax(dim=1)

    @property
    def at_once(self) -> int:
        """Return how many images a forward pass can take without exceeding SHARE of the memory.

        On a GPU, the memory is the free memory of this GPU; otherwise, it is the RAM.
        """
        each, memory = forward_bytes(self.meta.config.model, self.meta.image_shape), memory_bytes()
        if self.device.type == "cuda":
            memory = torch.cuda.mem_get_info(self.device)[0]
        # Memory counts as infinite if the system does not report it.
        return max(1, int(min(SHARE * memory / each, 1e9)))

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
            return pick_precision("auto" if name == "bf16" else name, self.device, self.model)
        except ValueError:
            return pick_precision("fp32", self.device, self.model)


def tagged(probabilities: Tensor, meta: Meta) -> Prediction:
    """Return the tags whose probability, one of (K,), reaches their threshold, highest first."""
    chances = zip(meta.classes, probabilities.tolist(), meta.tag_thresholds, strict=True)
    found = [(name, chance) for name, chance, least in chances if chance >= least]
    found.sort(key=lambda each: -each[1])
    names = "|".join(name for name, _ in found)
    return Prediction(names, probabilities.max().item(), found)


def load(
    path: str | Path,
    device: torch.device | str = "cpu",
    weights: str = "auto",
    image_size: int | Sequence[int] | None = None,
) -> Trained:
    """Load a trained model in eval mode onto `device`, with the model's metadata.

    To classify an image, call `load(path).predict("photo.jpg")`. To get the model itself, unpack
    the result: `model, meta = load(path)`.

    `path` is a checkpoint, a run's folder (which stands for its best checkpoint), a folder of runs
    (its newest finished run), or a built-in model, "builtin:cifar10". `weights` is "ema" for
    averaged weights, "raw", or "auto" (averaged weights if there are any). `image_size`, if given,
    replaces the training image size; learned positions are interpolated. Raise ValueError if the
    file is missing, damaged, or not a checkpoint, or if an argument is invalid.
    """
    file = builtin_checkpoint(path) or checkpoint_at(run_at(Path(path)))
    checkpoint = Checkpoint.load(file)
    chosen, state = pick_weights(checkpoint, weights)
    config = from_checkpoint(checkpoint.config, PREDICTING)
    task = checked_task(checkpoint, config, state, image_size)
    model = task.build_model().to(device)
    if isinstance(config.model, ViTConfig):
        state = resize_positions(
            state, grid_of(checkpoint.image_shape[1:], config.model.patch_size), model
        )
    model.load_state_dict(state)
    meta = Meta(
        path=file,
        config=config,
        task=task,
        image_shape=task.image_shape,
        statistics=valid_statistics(checkpoint.mean, checkpoint.std),
        epoch=checkpoint.epoch,
        step=checkpoint.step,
        images_seen=checkpoint.images_seen,
        weights=chosen,
        **{each.name: getattr(checkpoint, each.name) for each in fields(Facts)},
    )
    if meta.image_shape != checkpoint.image_shape:
        return Trained(model.eval(), replace(meta, temperature=None, thresholds={}))
    return Trained(model.eval(), with_calibration(meta))


def pick_weights(checkpoint: Checkpoint, asked: str) -> tuple[str, State]:
    """Return the name of a checkpoint's weights, "ema" or "raw", and the weights.

    `asked` is "ema", "raw" or "auto" (averaged weights if there are any). Raise ValueError for any
    other name, and if the checkpoint lacks averaged weights that are asked for.
    """
    if asked not in WEIGHTS:
        raise ValueError(f"weights={asked} must be one of: {', '.join(WEIGHTS)}")
    if asked == "ema" and checkpoint.ema is None:
        raise ValueError(
            "weights=ema: this run kept no moving average of the weights (train.ema_decay): "
            "use weights=raw"
        )
    if asked == "raw" or checkpoint.ema is None:
        return "raw", checkpoint.model
    return "ema", checkpoint.ema


def checked_task(
    checkpoint: Checkpoint,
    config: TrainConfig,
    state: State,
    image_size: int | Sequence[int] | None,
) -> Task:
    """Return the checkpoint's task at `image_size` or, if None, at the training image size.

    Raise ValueError unless the shapes in `state` match the model, and the model fits into memory.
    Both are checked before memory is allocated, so that a small file cannot demand a huge model.
    """
    channels, *trained_size = checkpoint.image_shape
    num_classes = len(checkpoint.classes)
    if num_classes < 1 or min(trained_size) < 1 or channels != CHANNELS:
        raise ValueError(
            f"the checkpoint has {counted(num_classes, 'class')} and images of "
            f"{in_pixels(trained_size)} with {counted(channels, 'channel')}: it must "
            f"have at least one class, a positive image size and {CHANNELS} channels"
        )

    def at_size(size: int | Sequence[int]) -> tuple[Task, nn.Module]:
        """Return the task, and its model on the meta device, which holds shapes only."""
        task = make_task(config.task, config.model, (channels, *sides(size)), num_classes)
        return task, on_meta(task.build_model, config.model)

    _, model = at_size(trained_size)
    expected = {key: value.shape for key, value in model.state_dict().items()}
    if expected != {key: value.shape for key, value in state.items()}:
        raise ValueError(
            "the checkpoint's weights do not match its config: the file must be damaged"
        )
    task, model = at_size(trained_size if image_size is None else size_of("image_size", image_size))
    require_bounded_memory(config, model, task.image_shape)
    return task


def require_bounded_memory(
    config: TrainConfig, model: nn.Module, image_shape: tuple[int, int, int]
) -> None:
    """Raise ValueError if the model, at this image size, needs more memory than the machine has.

    Attention and position tables grow with the image size, so even a small checkpoint may need more
    memory than the machine has.
    """
    image_size = image_shape[1:]
    require_few_patches(config.model, image_size)
    positions = (each for each in model.modules() if isinstance(each, PositionEmbedding))
    tables = [table for each in positions for table in each.parameters()]
    require_memory(
        bytes_of([*tables, *model.buffers()]) + forward_bytes(config.model, image_shape),
        f"an image of {in_pixels(image_size)}, with this model's positions and attention,",
        "choose a smaller data.image_size",
    )


def valid_statistics(
    mean: Sequence[float], std: Sequence[float], channels: int = CHANNELS
) -> Statistics:
    """Return `mean` and `std` as Statistics; raise ValueError if they are invalid.

    Each must have one finite value per channel, and every std must be positive.
    """
    mean, std = tuple(map(float, mean)), tuple(map(float, std))
    finite = all(map(math.isfinite, (*mean, *std)))
    if not finite or not len(mean) == len(std) == channels or min(std) <= 0:
        raise ValueError(
            f"mean {mean} and std {std} must each have {channels} finite values, one per channel, "
            "and each std must be positive (data.mean, data.std)"
        )
    return Statistics(mean, std)


def with_calibration(meta: Meta) -> Meta:
    """Replace the checkpoint's temperature and thresholds by those in vit-eval's calibration file.

    A temperature that is not between LEAST and MOST counts as unknown.
    """
    noted = noted_calibration(meta.path) or Calibration({})
    temperature = noted.temperatures.get(meta.key, meta.temperature)
    return replace(
        meta,
        temperature=temperature if LEAST <= (temperature or 0.0) <= MOST else None,
        thresholds=noted.thresholds.get(meta.key, meta.thresholds),
    )


@dataclass(frozen=True)
class Calibration:
    """The content of a run's calibration file: temperatures and thresholds by `Meta.key`."""

    temperatures: dict[str, float | None]
    thresholds: dict[str, dict[str, float | None]] = field(default_factory=dict)


def noted_calibration(checkpoint: Path) -> Calibration | None:
    """Return the content of a run's calibration file, which is empty if there is no file.

    Return None if the file is damaged, or is not from vit-eval.
    """
    try:
        content = read_object(calibration_file(checkpoint))
        return typed(Calibration, content) if content else Calibration({})
    except Refused:
        return None


def encoder_of(model: nn.Module) -> Encoder | None:
    """Return the model's encoder, or None if the model has none.

    A classifying Vision Transformer is itself an encoder; an autoencoder contains an encoder.
    """
    return next((each for each in model.modules() if isinstance(each, Encoder)), None)


def portable(config: dict[str, Any]) -> dict[str, Any]:
    """Return a run's settings without the paths on the machine that trained the model."""
    named = {
        group: {
            key: Path(value).name if key in ("teacher", "file", "split_as") and value else value
            for key, value in config[group].items()
        }
        for group in ("task", "data")
    }
    named["data"] |= {"root": "data", "download": False}
    return config | named | dict.fromkeys(("init_from", *CONTINUED))
