"""The settings of all commands except `vit-train`."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from vit_train.base.setting import Settings, seed_setting, setting
from vit_train.data.config import (
    MAX_PIXELS,
    MAX_PIXELS_TEXT,
    ON_ERROR_CHOICES,
    AugmentConfig,
    DataConfig,
)
from vit_train.engine.config import DEVICE_TEXT, DEVICES, PRECISIONS
from vit_train.runs.config import CONTINUED, TrainConfig

# The choices of a checkpoint's weights; auto takes the averaged weights if there are any.
WEIGHTS = ("auto", "ema", "raw")
# The most checkpoints that vit-eval compares.
MOST_COMPARED = 8


@dataclass
class TrainedConfig(Settings):
    """Settings of the commands that use a checkpoint."""

    ckpt: str = setting("???", "A run, a checkpoint, a folder of runs, or builtin:cifar10.")
    weights: str = setting("auto", "auto (EMA if available), ema, or raw.", choices=WEIGHTS)


@dataclass
class EvalDataConfig(Settings):
    """Settings of the images to evaluate; null means the run's value."""

    group: ClassVar[str] = "data"

    name: str | None = setting(
        None, "A different source of images than the run's, for example folder."
    )
    root: str | None = setting(None, "The folder that holds the images.")
    download: bool = setting(
        False,
        "Download missing images; this setting is never taken from the run, which may be "
        "somebody else's.",
    )
    image_size: int | None = setting(
        None,
        "Evaluate at a different image size than in training; learned positions are interpolated.",
        at_least=1,
    )
    on_error: str | None = setting(
        None,
        "Files in a folder that cannot be decoded: stop and list them, or skip them.",
        choices=ON_ERROR_CHOICES,
    )
    max_pixels: int | None = setting(
        None,
        "Images in a folder with more pixels than this are treated as undecodable.",
        at_least=1,
    )
    val_subset: int | None = setting(
        None,
        "Use only this many validation images, stratified. If the images are not the run's own, "
        "vit-eval fits the temperature on this subset.",
        at_least=1,
    )
    test_subset: int | None = setting(
        None, "Use only this many test images, stratified.", at_least=1
    )


@dataclass
class EvalConfig(TrainedConfig):
    """All settings of `vit-eval`; null means as in training."""

    ckpt: Any = setting(
        "???",
        "A run, a checkpoint, a folder of runs, or builtin:cifar10; [A,B] compares several, "
        "with a significance test.",
    )
    split: str = setting(
        "test", "The split to evaluate: test, val or train.", choices=("train", "val", "test")
    )
    batch_size: int | None = setting(None, "Images per batch.", at_least=1)
    device: str = setting("auto", DEVICE_TEXT, choices=DEVICES)
    precision: str | None = setting(None, "fp32, tf32, bf16 or fp16.", choices=PRECISIONS)
    tta: str = setting(
        "none",
        "Test-time augmentation, reported separately: none, or flip (the mean of the "
        "probabilities of an image and its mirror image).",
        choices=("none", "flip"),
    )
    robustness: bool = setting(
        False,
        "Also evaluate on images corrupted in eight ways, at five severities each (40 "
        "evaluations).",
    )
    out: str | None = setting(
        None,
        "The folder to write into, with subfolders A, B and so on for several checkpoints; "
        "null: a folder in the run's folder, such as eval-test/.",
    )
    data: EvalDataConfig = field(default_factory=EvalDataConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        # A run in a sweep has a number for a name.
        several = isinstance(self.ckpt, list)
        self.ckpt = [str(each) for each in self.ckpt] if several else str(self.ckpt)
        if several and not 2 <= len(self.ckpt) <= MOST_COMPARED:
            raise ValueError(f"ckpt=[A,B] compares 2 to {MOST_COMPARED} checkpoints")
        if several and (self.tta != "none" or self.robustness):
            raise ValueError("tta= and robustness= are for one checkpoint, not for ckpt=[A,B]")


@dataclass
class PredictConfig(TrainedConfig):
    """All settings of `vit-predict`."""

    images: Any = setting(
        "???",
        "A file, a folder, a pattern such as photos/*.jpg, a list of them, or - for paths on "
        "standard input.",
    )
    out: str | None = setting(
        None, "Write all predictions to this file, as CSV (.csv) or JSON lines (.jsonl)."
    )
    topk: int = setting(3, "Number of most probable classes to show.", at_least=1)
    device: str = setting("auto", DEVICE_TEXT, choices=DEVICES)
    max_pixels: int = setting(MAX_PIXELS, MAX_PIXELS_TEXT, at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.out is not None and not self.out.endswith((".csv", ".jsonl")):
            raise ValueError(f"out={self.out} must end in .csv or .jsonl")


@dataclass
class ExplainConfig(TrainedConfig):
    """All settings of `vit-explain`."""

    images: Any = setting(
        None,
        "Images to explain, as for vit-predict; null: a fixed sample of the run's test images.",
    )
    count: int = setting(12, "Maximum number of images to draw.", at_least=1, at_most=1000)
    method: str = setting(
        "relevance",
        "relevance: the regions that raised the class's logit; rollout: attention combined "
        "over all layers; attention: the attention of one layer; all: all three side by side.",
        choices=("relevance", "rollout", "attention", "all"),
    )
    layer: int = setting(
        -1, "The layer for method=attention, counted from 1, or from the end if negative."
    )
    target: str | None = setting(None, "The class to explain; null: the predicted class.")
    score: int = setting(
        0,
        "Also score the method on this many test images: by deleting patches and, where the "
        "positions of objects are known, by the pointing game.",
        at_least=0,
    )
    out: str | None = setting(
        None,
        "The folder for maps.png, distances.png and filters.png; null: a folder in the run's "
        "folder, such as explain/.",
    )
    html: str | None = setting(
        None,
        "Write a web page instead of pictures: a single .html file in which the model runs "
        "in a browser, on the first `count` test images and on any photo.",
    )
    device: str = setting("auto", DEVICE_TEXT, choices=DEVICES)
    data: EvalDataConfig = field(default_factory=EvalDataConfig)
    max_pixels: int = setting(MAX_PIXELS, MAX_PIXELS_TEXT, at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.html is not None and not self.html.endswith(".html"):
            raise ValueError(f"html={self.html} must end in .html")
        if self.target is not None and self.method not in ("relevance", "all"):
            raise ValueError(
                f"method={self.method} draws the same map for every class: leave out target="
            )


@dataclass
class ExportConfig(TrainedConfig):
    """All settings of `vit-export`."""

    format: str = setting(
        "onnx",
        "onnx; torch: a torch.export program; safetensors: the weights, with vit_train's "
        "parameter names; timm or hf (Hugging Face): a folder that these libraries open.",
        choices=("onnx", "torch", "safetensors", "timm", "hf"),
    )
    out: str | None = setting(
        None,
        "The file or folder to write; null: model.onnx or similar, in export/ in the run's folder.",
    )
    normalize: bool = setting(
        True,
        "With onnx and torch: if true, the exported model takes uint8 images and normalizes "
        "them; if false, it takes normalized floats.",
    )
    # Test images on which the export is also checked, if they are present.
    data: EvalDataConfig = field(default_factory=EvalDataConfig)


@dataclass
class SheetConfig(Settings):
    """All settings of `vit-augment`."""

    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    # At most 30 rows and columns, because matplotlib takes minutes to lay out more.
    images: int = setting(6, "Number of images.", at_least=1, at_most=30)
    variants: int = setting(
        8, "Number of augmented versions of each image.", at_least=1, at_most=30
    )
    seed: int = seed_setting(0, "Seed for the augmentation.")
    out: str = setting("augmented.png", "The picture to write: .png, .pdf or .svg.")


@dataclass
class InspectConfig(TrainConfig):
    """All settings of `vit-inspect`: those of `vit-train`, plus image_size, classes and out."""

    image_size: int | None = setting(
        None, "The side of the images in pixels; null: that of the data.", at_least=1
    )
    classes: int | None = setting(
        None, "The number of classes; null: that of the data.", at_least=1
    )
    out: str = setting("positions.png", "The picture of the position table, if the model has one.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in CONTINUED:
            if (run := getattr(self, key)) is not None:
                raise ValueError(
                    f"{key}={run} is only for vit-train: vit-inspect describes new models"
                )
