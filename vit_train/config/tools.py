"""The settings of all commands except `vit-train`."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from vit_train.config.augment import AugmentConfig
from vit_train.config.data import (
    DataConfig,
    TableConfig,
    max_pixels_setting,
)
from vit_train.config.fields import Settings, seed_setting, setting
from vit_train.config.run import TrainConfig
from vit_train.config.training import PRECISIONS, device_setting

# The choices of a checkpoint's weights; auto takes the averaged weights if there are any.
WEIGHTS = ("auto", "ema", "raw")
# The accuracies for which vit-eval chooses a threshold, below which vit-predict may abstain.
TARGETS = (0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
# The most checkpoints that vit-eval compares.
MOST_COMPARED = 8
# The endings of the pictures' file names.
PICTURES = (".png", ".pdf", ".svg", ".jpg")


@dataclass
class TrainedConfig(Settings):
    """Settings of all commands that load a trained model."""

    ckpt: str = setting(
        "???",
        "The model: a run's folder (its best checkpoint), a checkpoint, a folder of runs (the "
        "newest finished run), or a built-in model (builtin:cifar10, builtin:cifar10_token).",
    )
    weights: str = setting(
        "auto", "The weights: auto (EMA if available), ema, or raw.", choices=WEIGHTS
    )


def as_in_training(name: str, text: str = "") -> Any:
    """Return a field for a setting of the training data; its default, null, is the run's value.

    `text` is the help text, by default the one for training.
    """
    own = TableConfig.__dataclass_fields__[name].metadata
    text = text or own["help"].partition(" null:")[0].rstrip(".;") + "; null: as in training."
    return field(default=None, metadata={**own, "help": text, "otherwise": None})


@dataclass
class EvalDataConfig(Settings):
    """Settings of the images to evaluate; null stands for the run's own value."""

    group: ClassVar[str] = "data"

    name: str | None = setting(
        None, "The source of the images, for example folder; null: as in training."
    )
    root: str | None = setting(None, "The folder that holds the images; null: as in training.")
    file: str | None = as_in_training(
        "file", "The CSV file that lists the images; null: the run's own (data.name=table)."
    )
    layout: str | None = as_in_training(
        "layout", "classes: every folder in data.root is a class; null: as in training."
    )
    tag_separator: str | None = as_in_training("tag_separator")
    download: bool = setting(
        False,
        "Download missing images. The run's own value is ignored, because the run may be "
        "somebody else's.",
    )
    image_size: Any = as_in_training(
        "image_size",
        "The image size; null: as in training. At another size, learned positions are "
        "interpolated.",
    )
    decisions: str | None = as_in_training("decisions")
    on_error: str | None = as_in_training("on_error")
    max_pixels: int | None = as_in_training(
        "max_pixels",
        "Treat image files with more pixels than this as files that cannot be decoded; null: the "
        "run's value, but at most the default.",
    )
    test_subset: int | None = as_in_training(
        "test_subset",
        "Use only this many test images, stratified by class; null: as in training "
        "for the run's own images, and all of other images.",
    )


@dataclass
class EvalConfig(TrainedConfig):
    """All settings of `vit-eval`; null stands for the value used in training."""

    ckpt: Any = setting(
        "???",
        "The model: a run's folder (its best checkpoint), a checkpoint, a folder of runs (the "
        "newest finished run), or builtin:cifar10; [A,B] compares several, with a significance "
        "test; if their classes differ, on the last model's images of the common classes.",
    )
    split: str = setting(
        "test", "The split to evaluate: test, val or train.", choices=("train", "val", "test")
    )
    batch_size: int | None = setting(
        None, "Number of images per batch; null: the run's train.eval_batch_size.", at_least=1
    )
    device: str = device_setting()
    precision: str | None = setting(
        None,
        "auto, fp32, tf32, bf16 or fp16; null: the run's precision, or fp32 if the device does not "
        "support it; for a run in bf16, null means auto. The calibration is saved only with null.",
        choices=PRECISIONS,
    )
    probe: bool = setting(
        False,
        "Also evaluate the model's features: by k-nearest neighbors and by a linear classifier, "
        "both fitted to the features of the training images.",
    )
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
    foreign: str | None = setting(
        None,
        "A folder of out-of-distribution images: also report how well the confidence tells them "
        "from the evaluated images.",
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
            raise ValueError(f"ckpt=[A,B,…] must name 2 to {MOST_COMPARED} checkpoints")
        if several and (self.tta != "none" or self.robustness or self.foreign):
            raise ValueError(
                "tta=, robustness= and foreign= work with one checkpoint only, not with ckpt=[A,B]"
            )
        if self.probe and self.split == "train":
            raise ValueError("probe=true fits to the training images: choose split=test or val")


@dataclass
class SuspectsConfig(Settings):
    """All settings of `vit-suspects`."""

    runs: str = setting(
        "???",
        "The folder of a cross-validation: runs with data.cv_fold=0, 1 and so on. Runs of the same "
        "fold are averaged.",
    )
    out: str | None = setting(
        None, "The folder to write into; null: suspects/ in the folder of the runs."
    )
    device: str = device_setting()
    data: EvalDataConfig = field(default_factory=EvalDataConfig)


@dataclass
class PredictConfig(TrainedConfig):
    """All settings of `vit-predict`."""

    images: Any = setting(
        "???",
        "An image file, a folder, a pattern such as photos/*.jpg, a list such as [A,B], or - to "
        "read paths from standard input.",
    )
    out: str | None = setting(
        None,
        "Write all predictions to this file, as CSV (.csv) or JSON lines (.jsonl).",
        suffixes=(".csv", ".jsonl"),
    )
    topk: int = setting(3, "Number of most probable classes to show (not for tags).", at_least=1)
    abstain: float | None = setting(
        None,
        "Predict only if the confidence is so high that, on images like the run's validation "
        f"images, at least this share ({', '.join(map(str, TARGETS))}) of the predictions is "
        "correct with 95 % certainty; otherwise, print unsure. Run vit-eval first.",
        choices=TARGETS,
    )
    device: str = device_setting()
    max_pixels: int = max_pixels_setting()


@dataclass
class FeaturesConfig(TrainedConfig):
    """All settings of `vit-features`."""

    images: Any = setting(
        None, "Images of your own, as for vit-predict; null: all images of the run, by split."
    )
    layer: int = setting(
        -1,
        "The layer of a Vision Transformer, counted from 1, or from the end if negative. The last "
        "layer's features are normalized as for the head.",
    )
    tokens: str = setting(
        "auto",
        "class: the class token; mean: the mean of the patches; auto: what the head reads or, "
        "without a head, the mean.",
        choices=("auto", "class", "mean"),
    )
    out: str = setting("features.npz", "The NumPy file to write.", suffixes=(".npz",))
    device: str = device_setting()
    data: EvalDataConfig = field(default_factory=EvalDataConfig)


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
        "over all layers; attention: the attention of one layer (layer=); "
        "all: all three side by side.",
        choices=("relevance", "rollout", "attention", "all"),
    )
    layer: int = setting(
        -1,
        "The layer for method=attention or all, or a decoder's layer, counted from 1, or from the "
        "end if negative.",
    )
    target: str | None = setting(
        None,
        "The class to explain; null: the predicted class (a class called null needs two pairs of "
        "quotes: target=\"'null'\").",
    )
    score: int = setting(
        0,
        "Also score the method on this many test images: by deleting the 10 % of patches that "
        "a map marks most and, for data=shapes, by the pointing game (is the highest patch on the "
        "object?); 0: no score.",
        at_least=0,
    )
    out: str | None = setting(
        None,
        "The folder for the figures, such as maps.png; null: a folder in the run's folder, such "
        "as explain/.",
    )
    html: str | None = setting(
        None,
        "Instead of pictures, write a web page to this .html file. The page runs the model in the "
        "browser, on `count` test images and on any photo.",
        suffixes=(".html",),
    )
    device: str = device_setting()
    data: EvalDataConfig = field(default_factory=EvalDataConfig)
    max_pixels: int = max_pixels_setting()

    def __post_init__(self) -> None:
        super().__post_init__()
        pictured = ("images", "method", "layer", "target", "score", "out")
        given = [f"{key}=" for key in pictured if getattr(self, key) != getattr(ExplainConfig, key)]
        if self.html is not None and given:
            raise ValueError(
                f"html= writes only a page with test images: leave out {', '.join(given)}"
            )
        if self.target is not None and self.score:
            raise ValueError("score= is for maps of the predicted class: leave out target=")
        if self.target is not None and self.method not in ("relevance", "all"):
            raise ValueError(
                f"method={self.method} draws the same map for every class: leave out target="
            )


@dataclass
class ExportConfig(TrainedConfig):
    """All settings of `vit-export`."""

    format: str = setting(
        "onnx",
        "The format: onnx; onnx_int8 (8-bit arithmetic); deploy (a folder with an ONNX model and "
        "predict.py, which needs no PyTorch); torch (a torch.export program); safetensors (the "
        "weights, under vit_train's names); timm or hf (a folder that timm or Hugging Face opens).",
        choices=("onnx", "onnx_int8", "deploy", "torch", "safetensors", "timm", "hf"),
    )
    out: str | None = setting(
        None,
        "The file or folder to write; null: model.onnx or similar, in export/ in the run's folder.",
    )
    normalize: bool = setting(
        True,
        "With onnx, onnx_int8 and torch: if true, the exported model takes uint8 images and "
        "normalizes them; if false, it takes normalized floats.",
    )
    calibrated: bool = setting(
        False,
        "Divide the head's weights by the temperature that vit-eval found, so that the softmax of "
        "the exported model's logits is calibrated.",
    )
    # Test images on which the export is also checked, if they are present.
    data: EvalDataConfig = field(default_factory=EvalDataConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.normalize and self.format not in ("onnx", "onnx_int8", "torch"):
            raise ValueError(
                "normalize=false works only with format=onnx, onnx_int8 or torch: "
                f"format={self.format} never normalizes images"
            )


@dataclass
class SheetConfig(Settings):
    """All settings of `vit-augment`."""

    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    # At most 30 rows and columns, because matplotlib takes minutes to lay out more.
    images: int = setting(6, "Number of training images, one per row.", at_least=1, at_most=30)
    variants: int = setting(
        8, "Number of augmented versions of each image.", at_least=1, at_most=30
    )
    seed: int = seed_setting("Seed for the augmentation.")
    out: str = setting(
        "augmented.png", "The picture file to write: .png, .pdf, .svg or .jpg.", suffixes=PICTURES
    )


@dataclass
class DataReportConfig(Settings):
    """All settings of `vit-data`."""

    data: DataConfig = field(default_factory=DataConfig)
    out: str = setting(
        "data_report.csv",
        "The CSV file to write, with one row for each fault. Files beside it show copies "
        "(data_report_copies.png) and your own photos to decide on (data_report_workbench.html).",
    )


@dataclass
class InspectConfig(TrainConfig):
    """All settings of `vit-inspect`: those of `vit-train`, plus classes and out."""

    classes: int | None = setting(
        None, "Number of classes; null: the number in the data.", at_least=1
    )
    out: str = setting(
        "positions.png",
        "The picture file for the position table, if the model has one.",
        suffixes=PICTURES,
    )
