"""The settings of the commands that come after training or before it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vit_train.data.augment.config import AugmentConfig
from vit_train.data.config import MAX_PIXELS, DataConfig
from vit_train.engine.config import DEVICES, PRECISIONS, require_choice
from vit_train.runs.config import TrainConfig

# The choices of a checkpoint's weights; auto takes the averaged weights if there are any.
WEIGHTS = ("auto", "ema", "raw")
# Checkpoints that vit-eval compares.
MOST_COMPARED = 8
# Test-time augmentations.
TTA = ("none", "flip")
MOST_PICTURES = 1000  # on one sheet; matplotlib takes minutes to lay out more
PICTURES = (".png", ".pdf", ".svg")
TABLES = (".csv", ".jsonl")
# Ways to tell which patches a prediction comes from.
METHODS = ("relevance", "rollout", "attention")
# What vit-export writes.
FORMATS = ("onnx", "torch", "safetensors", "timm", "hf")


@dataclass
class EvalDataConfig:
    """Where the images come from; null means as in the run."""

    # Another source than the run's, for example folder.
    name: str | None = None
    # The folder that holds the images.
    root: str | None = None
    # Not taken from the run: opening somebody else's checkpoint must not start a download.
    download: bool = False
    # Evaluate at another image size than in training; learned positions are interpolated.
    image_size: int | None = None
    # Of folders: what to do with files that cannot be decoded, stop or skip.
    on_error: str | None = None
    # Of folders: files with more pixels than this count as files that cannot be decoded.
    max_pixels: int | None = None
    # Use only this many images, stratified. When vit-eval evaluates other images, it fits the
    # temperature on val_subset validation images.
    val_subset: int | None = None
    test_subset: int | None = None


@dataclass
class EvalConfig:
    """All settings of `vit-eval`; null means as in training."""

    # A run, a checkpoint, a folder of runs, or builtin:cifar10; of several, [A,B], vit-eval also
    # says whether one is better.
    ckpt: Any = "???"
    # The images: test, val or train.
    split: str = "test"
    # auto: the moving average if there is one; ema: that; raw: the weights themselves.
    weights: str = "auto"
    # Images that are taken from the data set at once.
    batch_size: int | None = None
    # auto (a GPU if there is one), cpu or cuda.
    device: str = "auto"
    # fp32, tf32, bf16 or fp16.
    precision: str | None = None
    # Test-time augmentation, none or flip, reported separately: flip averages the probabilities of
    # an image and its mirror image.
    tta: str = "none"
    # Also evaluate on images corrupted in eight ways, at five severities each (40 evaluations).
    robustness: bool = False
    # The folder to write into; null is one in the run's folder, such as eval-test/. Of several
    # checkpoints, each has a folder in it, A, B and so on.
    out: str | None = None
    data: EvalDataConfig = field(default_factory=EvalDataConfig)

    def __post_init__(self) -> None:
        if self.ckpt is None:
            raise ValueError("ckpt=null names no checkpoint: write ckpt=PATH")
        # A run of a sweep has a number for a name.
        several = isinstance(self.ckpt, list)
        self.ckpt = [str(each) for each in self.ckpt] if several else str(self.ckpt)
        if several and not 2 <= len(self.ckpt) <= MOST_COMPARED:
            raise ValueError(f"ckpt=[A,B] compares 2 to {MOST_COMPARED} checkpoints")
        if several and (self.tta != "none" or self.robustness):
            raise ValueError("tta= and robustness= are for one checkpoint, not for ckpt=[A,B]")
        require_choice("tta", self.tta, TTA)
        require_choice("split", self.split, ("train", "val", "test"))
        require_choice("weights", self.weights, WEIGHTS)
        require_choice("device", self.device, DEVICES)
        if self.precision is not None:
            require_choice("precision", self.precision, PRECISIONS)
        if self.batch_size is not None:
            require_at_least_one(batch_size=self.batch_size)


@dataclass
class PredictConfig:
    """All settings of `vit-predict`."""

    # A run, a checkpoint, a folder of runs, or builtin:cifar10.
    ckpt: str = "???"
    # A file, a folder, a pattern such as photos/*.jpg, a list of them, or - for paths on stdin.
    images: Any = "???"
    # Write all predictions to this file, as CSV (.csv) or as JSON lines (.jsonl).
    out: str | None = None
    # The number of most probable classes to name.
    topk: int = 3
    # Also draw heat maps of the parts of the first images that raised the predicted class: beside
    # `out`, into NAME-maps.png or, without `out`, into predicted.png in the run's folder.
    overlay: bool = False
    # auto: the moving average if there is one; ema: that; raw: the weights themselves.
    weights: str = "auto"
    # auto (a GPU if there is one), cpu or cuda.
    device: str = "auto"
    # Images with more pixels than this count as files that cannot be decoded.
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        require_at_least_one(topk=self.topk, max_pixels=self.max_pixels)
        require_choice("weights", self.weights, WEIGHTS)
        require_choice("device", self.device, DEVICES)
        if self.out is not None and Path(self.out).suffix not in TABLES:
            raise ValueError(f"out={self.out} must end in {' or '.join(TABLES)}")


@dataclass
class ExplainConfig:
    """All settings of `vit-explain`."""

    # A run, a checkpoint, a folder of runs, or builtin:cifar10.
    ckpt: str = "???"
    # As for vit-predict; null takes some test images of the run's data, always the same.
    images: Any = None
    # How many images are drawn at most.
    count: int = 12
    # relevance: what raised the class's logit; rollout: attention through all layers; attention: of
    # one layer, counted from 1, or from the end if negative.
    method: str = "relevance"
    layer: int = -1
    # The class that is explained; null is the predicted one.
    target: str | None = None
    # Also measure the method on this many test images: by the pointing game, where the objects'
    # positions are known, and by deleting patches.
    score: int = 0
    # The folder for maps.png, distances.png, filters.png; null is one in the run's folder,
    # such as explain/.
    out: str | None = None
    # auto: the moving average if there is one; ema: that; raw: the weights themselves.
    weights: str = "auto"
    # auto (a GPU if there is one), cpu or cuda.
    device: str = "auto"
    data: EvalDataConfig = field(default_factory=EvalDataConfig)
    # Images with more pixels than this count as files that cannot be decoded.
    max_pixels: int = MAX_PIXELS

    def __post_init__(self) -> None:
        require_at_least_one(count=self.count, max_pixels=self.max_pixels)
        require_choice("method", self.method, METHODS)
        require_choice("weights", self.weights, WEIGHTS)
        require_choice("device", self.device, DEVICES)
        if self.score < 0:
            raise ValueError(f"score={self.score} must not be negative")
        if self.score and self.target is not None:
            raise ValueError("score= measures the maps of the predicted classes: leave out target=")
        if self.target is not None and self.method != "relevance":
            raise ValueError(f"method={self.method} is the same for every class: leave out target=")
        if self.count > MOST_PICTURES:
            raise ValueError(f"count={self.count}: at most {MOST_PICTURES:,} images are drawn")


@dataclass
class ExportConfig:
    """All settings of `vit-export`."""

    # A run, a checkpoint, a folder of runs, or builtin:cifar10.
    ckpt: str = "???"
    # onnx; torch: a program of torch.export; safetensors: the weights as they are here; timm or hf
    # (Hugging Face): a folder that these libraries open.
    format: str = "onnx"
    # The file or folder to write; null: model.onnx and the like, in export/ in the run's folder.
    out: str | None = None
    # onnx and torch: take images as uint8 and normalize them; false takes normalized floats.
    normalize: bool = True
    # auto: the moving average if there is one; ema: that; raw: the weights themselves.
    weights: str = "auto"
    # The test images on which the export is checked, too, where they are present.
    data: EvalDataConfig = field(default_factory=EvalDataConfig)

    def __post_init__(self) -> None:
        require_choice("format", self.format, FORMATS)
        require_choice("weights", self.weights, WEIGHTS)
        if not self.normalize and self.format not in FORMATS[:2]:
            raise ValueError(
                f"normalize=false is for format={' and '.join(FORMATS[:2])}: the others hold "
                "weights, not the work on images"
            )


@dataclass
class SheetConfig:
    """All settings of `vit-augment`."""

    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    # How many images, and how often each is augmented.
    images: int = 6
    variants: int = 8
    # Seed of the augmentation.
    seed: int = 0
    # The picture to write: .png, .pdf or .svg.
    out: str = "augmented.png"

    def __post_init__(self) -> None:
        require_at_least_one(images=self.images, variants=self.variants)
        pictures = self.images * (1 + self.variants)
        if pictures > MOST_PICTURES:
            raise ValueError(
                f"images={self.images}, variants={self.variants} make {pictures:,} pictures, but "
                f"one sheet shows at most {MOST_PICTURES:,}"
            )
        require_picture(self.out)


@dataclass
class InspectConfig(TrainConfig):
    """All settings of `vit-inspect`: those of `vit-train`, whose new model it describes."""

    # The side of the images and the number of classes that the model is for; null: as in the data.
    image_size: int | None = None
    classes: int | None = None
    # The picture of the table of positions, if the model has one.
    out: str = "positions.png"

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("resume", "extend"):
            if (run := getattr(self, key)) is not None:
                raise ValueError(f"{key}={run} is for vit-train: vit-inspect describes new models")
        for setting in ("image_size", "classes"):
            if (value := getattr(self, setting)) is not None:
                require_at_least_one(**{setting: value})
        require_picture(self.out)


def require_at_least_one(**settings: int) -> None:
    for key, value in settings.items():
        if value < 1:
            raise ValueError(f"{key}={value} must be at least 1")


def require_picture(out: str) -> None:
    if Path(out).suffix not in PICTURES:
        raise ValueError(f"out={out} must end in {', '.join(PICTURES[:-1])} or {PICTURES[-1]}")
