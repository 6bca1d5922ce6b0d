"""Settings of the tasks.

To add a task, write a config class that names what it builds, and add a line to TASK_CONFIGS.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from vit_train.config.fields import Settings, setting
from vit_train.config.model import MOST_BLOCKS


@dataclass
class TaskConfig(Settings):
    """Base of the tasks' settings; `name` selects the task."""

    group: ClassVar[str] = "task"

    name: str = "???"


@dataclass
class LabelsConfig(TaskConfig):
    """Base of the settings of tasks that classify images."""

    label_smoothing: float = setting(
        0.1,
        "Share of the target that is spread evenly over all classes (Szegedy et al. 2016).",
        at_least=0,
        below=1,
        kept_by_fork=False,
    )


@dataclass
class ClassifyConfig(LabelsConfig):
    """Settings of classification, learned from labels."""

    builds = "vit_train.tasks.classify:Classify"

    name: str = "classify"
    class_weights: Any = setting(
        None,
        "A weight for each class in the loss: auto (inversely proportional to its number of "
        "training images), or a list with one number per class. A step's loss is the "
        "weighted mean over its images.",
        kept_by_fork=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        weights = self.class_weights
        numbers = weights if isinstance(weights, list) else []
        positive = [n for n in numbers if type(n) in (int, float) and 0 < n < float("inf")]
        if weights not in (None, "auto") and (not numbers or positive != numbers):
            raise ValueError(
                f"task.class_weights={weights} must be auto, null, or a list with one positive "
                "number per class, such as [1,2.5,1]"
            )


@dataclass
class TagsConfig(ClassifyConfig):
    """Settings of multi-label classification: an image has any number of tags."""

    builds = "vit_train.tasks.classify:Tags"

    name: str = "tags"
    label_smoothing: float = setting(
        0.0,
        "Label smoothing: with value s, the targets 0 and 1 become s/2 and 1 − s/2.",
        at_least=0,
        below=1,
        kept_by_fork=False,
    )
    class_weights: Any = setting(
        None,
        "A weight for each tag, by which the loss of the images that have the tag is multiplied: "
        "auto (the number of training images without the tag, divided by the number with it), or "
        "a list with one number per tag.",
        kept_by_fork=False,
    )


@dataclass
class DistillConfig(LabelsConfig):
    """Settings of classification, learned from labels and a trained classifier, the teacher."""

    builds = "vit_train.tasks.classify:Distill"

    name: str = "distill"
    teacher: str = setting(
        "???",
        "The teacher: a run (its folder or a checkpoint) or builtin:NAME. It can be any "
        "model with the same classes and image size.",
    )
    distillation: str = setting(
        "soft",
        "Targets from the teacher. soft: its probabilities (Hinton et al. 2015); hard: its "
        "predicted class (Touvron et al. 2021).",
        choices=("soft", "hard"),
    )
    alpha: float = setting(
        0.5, "The teacher's share of the loss; the rest comes from the labels.", above=0, at_most=1
    )
    temperature: float = setting(
        3.0,
        "Temperature of soft distillation: the logits of both models are divided by it; a "
        "higher temperature gives more weight to the teacher's less probable classes.",
        above=0,
    )
    hint: float = setting(
        0.0,
        "Weight of hints (Romero et al. 2015): after each third of its blocks, the "
        "student's patches should resemble the teacher's features at the same places, after the "
        "same third of its layers. Each third adds 1 − their correlation over channels.",
        at_least=0,
    )


@dataclass
class DecodeConfig(TaskConfig):
    """Base of the settings of tasks that predict pixels."""

    decoder_depth: int | None = setting(
        None,
        "Number of decoder blocks; null: as many as the encoder has.",
        at_least=1,
        at_most=MOST_BLOCKS,
    )


@dataclass
class ReconstructConfig(DecodeConfig):
    """Settings of a masked autoencoder, which predicts hidden patches from visible patches."""

    builds = "vit_train.tasks.pixels:Reconstruct"

    name: str = "reconstruct"
    mask_ratio: float = setting(0.75, "Share of the patches to hide.", above=0, below=1)
    normalize_target: bool = setting(
        False,
        "Predict patches normalized by their own mean and standard deviation: this gives "
        "better features, but the predictions lack the patches' colors and contrast (He et al. "
        "2022, section 3).",
    )


@dataclass
class AutoregressConfig(DecodeConfig):
    """Settings of autoregression, which predicts each patch from the patches before it."""

    builds = "vit_train.tasks.pixels:Autoregress"

    name: str = "autoregress"
    given_rows: int = setting(
        4,
        "Number of rows of patches, from the top, given to the encoder; 0: generate whole "
        "images from scratch.",
        at_least=0,
    )


TASK_CONFIGS: dict[str, type[TaskConfig]] = {
    "classify": ClassifyConfig,
    "tags": TagsConfig,
    "distill": DistillConfig,
    "reconstruct": ReconstructConfig,
    "autoregress": AutoregressConfig,
}
