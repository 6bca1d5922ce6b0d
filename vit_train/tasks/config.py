"""The tasks: their settings, and how each is made.

A new task is a config class with a `make`, and a line in TASK_CONFIGS. Torch is imported only when
one is made, so that bad values are rejected at once.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vit_train.model.config import ModelConfig

if TYPE_CHECKING:
    from vit_train.tasks.task import Task

DISTILLATIONS = ("soft", "hard")


@dataclass
class TaskConfig:
    """A task's config; `name` selects the task."""

    name: str = "???"

    def make(
        self, model: ModelConfig, image_shape: tuple[int, int, int], num_classes: int
    ) -> "Task":
        """Make the task; raise ValueError if this model or these images (C,S,S) do not fit it."""
        raise NotImplementedError

    @property
    def layers(self) -> int:
        """Return the number of blocks that this config explicitly adds to the model's."""
        return 0


@dataclass
class LabelsConfig(TaskConfig):
    """Base of the tasks that classify images."""

    # The share of the target that is spread evenly over all classes (Szegedy et al. 2016).
    label_smoothing: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"task.label_smoothing={self.label_smoothing} must be in [0, 1)")


@dataclass
class ClassifyConfig(LabelsConfig):
    """Classification of images."""

    name: str = "classify"
    # A weight for each class in the loss: auto, inversely to the number of its training images, or
    # a list with one number per class. A step's loss is the weighted mean over its images.
    class_weights: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        weights = self.class_weights
        listed = isinstance(weights, list) and bool(weights) and all(map(is_positive, weights))
        if not (weights in (None, "auto") or listed):
            raise ValueError(
                f"task.class_weights={weights} must be auto, null, or a list with one positive "
                "number per class, such as [1,2.5,1]"
            )

    def make(
        self, model: ModelConfig, image_shape: tuple[int, int, int], num_classes: int
    ) -> "Task":
        from vit_train.tasks.classify import Classify

        return Classify(self, model, image_shape, num_classes)


@dataclass
class DistillConfig(LabelsConfig):
    """Classification, learned from labels and from a trained classifier, the teacher."""

    name: str = "distill"
    # The teacher: a run (its folder or a checkpoint) or builtin:NAME, of any model, with the same
    # classes and image size.
    teacher: str = "???"
    # What is learned from it: soft, its probabilities (Hinton et al. 2015), or hard, the class that
    # it predicts (Touvron et al. 2021).
    distillation: str = "soft"
    # The share of the loss that the teacher has; the labels have the rest.
    alpha: float = 0.5
    # Divides the logits of both in soft distillation: higher shows more of what the teacher thinks
    # of the other classes.
    temperature: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.distillation not in DISTILLATIONS:
            choices = ", ".join(DISTILLATIONS)
            raise ValueError(f"task.distillation={self.distillation} must be one of: {choices}")
        if not 0 < self.alpha <= 1:
            raise ValueError(f"task.alpha={self.alpha} must be greater than 0, and at most 1")
        if not self.temperature > 0:
            raise ValueError(f"task.temperature={self.temperature} must be positive")

    def make(
        self, model: ModelConfig, image_shape: tuple[int, int, int], num_classes: int
    ) -> "Task":
        from vit_train.tasks.classify import Distill

        return Distill(self, model, image_shape, num_classes)


def is_positive(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 < value < math.inf


@dataclass
class DecodeConfig(TaskConfig):
    """Base of the tasks that predict pixels."""

    # The number of the decoder's blocks; null means as many as the encoder has.
    decoder_depth: int | None = None

    def __post_init__(self) -> None:
        if self.decoder_depth is not None and self.decoder_depth < 1:
            raise ValueError(f"task.decoder_depth={self.decoder_depth} must be at least 1, or null")

    @property
    def layers(self) -> int:
        return self.decoder_depth or 0


@dataclass
class ReconstructConfig(DecodeConfig):
    """Masked autoencoder: prediction of an image's hidden patches from the visible ones."""

    name: str = "reconstruct"
    # The share of the patches that is hidden.
    mask_ratio: float = 0.75
    # Predict each patch after subtracting its own mean and dividing by its own standard deviation:
    # better features, but pictures without the patches' colors (He et al. 2022, section 3).
    normalise_target: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.mask_ratio < 1:
            raise ValueError(f"task.mask_ratio={self.mask_ratio} must be between 0 and 1")

    def make(
        self, model: ModelConfig, image_shape: tuple[int, int, int], num_classes: int
    ) -> "Task":
        from vit_train.tasks.pixels import Reconstruct

        return Reconstruct(self, model, image_shape, num_classes)


@dataclass
class AutoregressConfig(DecodeConfig):
    """Autoregression: prediction of each patch from those before it."""

    name: str = "autoregress"
    # The number of first rows of patches that the encoder sees; 0 generates images from nothing.
    given_rows: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.given_rows < 0:
            raise ValueError(f"task.given_rows={self.given_rows} must not be negative")

    def make(
        self, model: ModelConfig, image_shape: tuple[int, int, int], num_classes: int
    ) -> "Task":
        from vit_train.tasks.pixels import Autoregress

        return Autoregress(self, model, image_shape, num_classes)


TASK_CONFIGS: dict[str, type[TaskConfig]] = {
    "classify": ClassifyConfig,
    "distill": DistillConfig,
    "reconstruct": ReconstructConfig,
    "autoregress": AutoregressConfig,
}
