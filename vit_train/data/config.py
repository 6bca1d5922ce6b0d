"""The settings of the data sources and of augmentation."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from vit_train.base.setting import Settings, seed_setting, setting
from vit_train.base.text import printable


@dataclass
class AugmentConfig(Settings):
    """Augmentation settings. Random draws are made for each image, in the order of these fields."""

    group: ClassVar[str] = "augment"

    crop_padding: int = setting(
        4, "Pad by this many black pixels, then crop to the image size at random.", at_least=0
    )
    flip: bool = setting(True, "Mirror each image with probability ½.")
    crop_scale: float | None = setting(
        None,
        "Crop a random part with at least this share of the image's area, and stretch it to full "
        "size; null: off.",
        above=0,
        at_most=1,
    )
    policy: str = setting(
        "none",
        "Color and geometric operations: none, randaugment, trivialaugment or autoaugment.",
        choices=("none", "randaugment", "trivialaugment", "autoaugment"),
    )
    # RandAugment's authors tried up to 3; each costs as much as all other augmentation together.
    num_ops: int = setting(
        2, "Number of operations per image; only for randaugment.", at_least=1, at_most=100
    )
    magnitude: int = setting(
        9, "Strength of the operations, 0 to 30; only for randaugment.", at_least=0, at_most=30
    )
    erase_prob: float = setting(
        0.0,
        "Probability of replacing a rectangle with the mean color.",
        at_least=0,
        at_most=1,
    )
    erase_area: float = setting(
        0.33, "Largest share of the image's area to erase.", at_least=0.02, below=1
    )
    mixup_alpha: float | None = setting(
        None,
        "Mixup: α of the Beta distribution; null: off. If cutmix_alpha is set, too, each "
        "image uses one of the two.",
        above=0,
    )
    cutmix_alpha: float | None = setting(
        None, "CutMix: α of the Beta distribution; null: off.", above=0
    )
    mix_prob: float = setting(
        1.0, "Probability of mixing an image with another.", at_least=0, at_most=1
    )
    mix_epochs: int | None = setting(
        None,
        "Mix images only during this many epochs from the start; null: during all epochs.",
        at_least=1,
    )


# The default limit on an image's pixels.
MAX_PIXELS = 64_000_000
MAX_PIXELS_TEXT = "Images with more pixels than this are treated as undecodable."
# How to handle files that cannot be decoded.
ON_ERROR_CHOICES = ("stop", "skip")


@dataclass
class DataConfig(Settings):
    """Settings common to all sources. `name` selects the source."""

    group: ClassVar[str] = "data"
    # The original image size and the number of classes, if known before loading.
    own_size: ClassVar[int | None] = None
    own_classes: ClassVar[int | None] = None

    name: str = "???"
    root: str = setting(
        lambda: os.environ.get("VIT_TRAIN_DATA") or "data", "The folder that holds the data sets."
    )
    download: bool = setting(
        False, "Download missing files into root, if the source can be downloaded."
    )
    image_size: int | None = setting(
        None,
        "Resize every image to this size while loading; null: the source's own size.",
        at_least=1,
    )
    mean: list[float] | None = setting(
        None,
        "Mean of each channel, for pixels from 0 to 1, subtracted to normalize images; null: "
        "that of the pretrained model (init_from=) if known, else that of the training "
        "images.",
    )
    std: list[float] | None = setting(
        None,
        "Standard deviation of each channel, by which images are divided; null: as for data.mean.",
        above=0,
    )
    val: str = setting(
        "split",
        "Validation images. split: the source's own or, if it has none, a share of the training "
        "set; none: no validation, so no best checkpoint; test: the test set, to follow published "
        "protocols (results are labeled as such).",
        choices=("split", "none", "test"),
    )
    val_fraction: float = setting(
        0.1, "Share of the training set to split off for validation.", above=0, below=1
    )
    cv_folds: int | None = setting(
        None,
        "Cross-validation: split the training images into this many stratified folds, validate on "
        "one and train on the others.",
        at_least=2,
    )
    cv_fold: int | None = setting(None, "The fold to validate on, counted from 0.", at_least=0)
    train_subset: int | None = setting(
        None,
        "Use only this many training images, a stratified random subset drawn after the "
        "validation split.",
        at_least=1,
    )
    val_subset: int | None = setting(
        None, "Use only this many validation images, stratified.", at_least=1
    )
    test_subset: int | None = setting(
        None, "Use only this many test images, stratified.", at_least=1
    )
    sampler: str = setting(
        "shuffled",
        "shuffled: each image once per epoch. balanced: same epoch length, classes drawn equally "
        "often (rare images repeat).",
        choices=("shuffled", "balanced"),
    )
    split_seed: int = seed_setting(
        0,
        "Seed of the splits and subsets, separate from the training seed, so that runs with "
        "different training seeds stay comparable.",
    )

    @property
    def title(self) -> str:
        """Return the name of the data in reports."""
        return self.name

    @property
    def class_count(self) -> int | None:
        return self.own_classes

    def __post_init__(self) -> None:
        super().__post_init__()
        self.root = os.path.expanduser(self.root)
        if len(self.mean or []) != len(self.std or []):
            raise ValueError(
                f"data.mean={self.mean}, data.std={self.std} must both have one number per channel"
            )
        folds, fold = self.cv_folds, self.cv_fold
        if (folds is None) != (fold is None) or (fold or 0) >= (folds or 1):
            raise ValueError(
                f"data.cv_fold={fold}, data.cv_folds={folds}: set both, the number of folds "
                "and the fold to validate on, counted from 0"
            )
        if folds is not None and self.val != "split":
            raise ValueError(
                f"data.cv_folds={folds} takes validation images from the training images: "
                f"set data.val=split instead of data.val={self.val}"
            )

    @property
    def selected_on(self) -> str | None:
        """Return the split that selects the best epoch, or None."""
        return {"split": "val", "test": "test", "none": None}[self.val]


@dataclass
class ArchiveConfig(DataConfig):
    """A source that is downloaded as one archive; its YAML preset lists the mirrors."""

    urls: list[str] = setting(
        list, "Mirrors, tried in this order; each download is checked against the same MD5."
    )


@dataclass
class Cifar10Config(ArchiveConfig):
    """CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 images, 32×32, 10 classes."""

    own_size: ClassVar[int] = 32
    own_classes: ClassVar[int] = 10

    name: str = "cifar10"


@dataclass
class Cifar100Config(Cifar10Config):
    """CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 images, 32×32, 100 classes."""

    own_classes: ClassVar[int] = 100

    name: str = "cifar100"


@dataclass
class Stl10Config(ArchiveConfig):
    """STL-10 (Coates, Ng and Lee 2011): 5,000 + 8,000 images, 96×96, 10 classes."""

    own_size: ClassVar[int] = 96
    own_classes: ClassVar[int] = 10

    name: str = "stl10"
    fold: int | None = setting(
        None,
        "Train on one of the ten official folds of 1,000 images; null: on all 5,000.",
        at_least=0,
        at_most=9,
    )
    unlabeled: bool = setting(
        False, "Add the 100,000 unlabeled images (2.8 GB on disk), for tasks without labels."
    )


@dataclass
class FolderConfig(DataConfig):
    """Your own images: root/train/CLASS/* and root/test/CLASS/*, or only root/CLASS/*."""

    name: str = "folder"
    root: str = setting("", "The folder that holds your images, one folder per class.")
    image_size: int = setting(
        64, "Scale the shorter side to this size, then crop the center.", at_least=1
    )
    test_fraction: float = setting(
        0.1,
        "Share of the images to split off for testing if there is neither test/ nor val/.",
        above=0,
        below=1,
    )
    on_error: str = setting(
        "stop",
        "What to do with files that cannot be decoded: stop and list them, or skip them.",
        choices=ON_ERROR_CHOICES,
    )
    max_pixels: int = setting(MAX_PIXELS, MAX_PIXELS_TEXT, at_least=1)
    cache: bool = setting(
        False, "Keep the decoded images in the user's cache folder for later runs."
    )

    @property
    def title(self) -> str:
        return printable(Path(self.root).expanduser().resolve().name) or self.name

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.root:
            raise ValueError("data.root=FOLDER must name the folder that holds your images")
        if self.image_size is None:  # OmegaConf accepts null for it
            raise ValueError("data.image_size must be a number for data=folder, such as 64")


@dataclass
class ShapesConfig(DataConfig):
    """The built-in data: geometric shapes, drawn from a seed."""

    own_size: ClassVar[int] = 32

    name: str = "shapes"
    image_size: int | None = setting(None, "Size of the images to draw; null: 32.", at_least=16)
    num_classes: int = setting(10, "Number of kinds of shapes, 2 to 10.", at_least=2, at_most=10)
    train_images: int = setting(10_000, "Number of training images to draw.", at_least=1)
    test_images: int = setting(2_000, "Number of test images to draw.", at_least=1)
    draw_seed: int = seed_setting(0, "Seed for drawing the shapes.")

    @property
    def class_count(self) -> int:
        return self.num_classes


# All choices of data=.
DATA_CONFIGS: dict[str, type[DataConfig]] = {
    "cifar10": Cifar10Config,
    "cifar100": Cifar100Config,
    "stl10": Stl10Config,
    "folder": FolderConfig,
    "shapes": ShapesConfig,
}
