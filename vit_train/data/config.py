"""The data sources: their settings, and how each is loaded.

A new source is a config class with a `load`, and a line in DATA_CONFIGS. Torch is imported only
when one is loaded, so that an invalid value is refused at once.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from vit_train.files.text import printable

if TYPE_CHECKING:
    from vit_train.data.dataset import Dataset

VAL_CHOICES = ("split", "none", "test")
SAMPLERS = ("shuffled", "balanced")
# Files with more pixels than this count as files that cannot be decoded, unless set otherwise.
MAX_PIXELS = 64_000_000
# What to do on an error: stop, or skip what is bad.
ON_ERROR_CHOICES = ("stop", "skip")
FOLDS = 10


@dataclass
class DataConfig:
    """Settings common to all sources. `name` selects the source."""

    # The side of the images as they are, if that is known before they are loaded.
    own_size: ClassVar[int | None] = None

    name: str = "???"
    # The folder that holds the data sets.
    root: str = field(default_factory=lambda: os.environ.get("VIT_TRAIN_DATA") or "data")
    # Download missing files into root, if the source can be downloaded.
    download: bool = False
    # Resize every image to this size once, while loading; null keeps the source's own size.
    image_size: int | None = None
    # Mean and standard deviation of each channel, of pixels from 0 to 1, by which images are
    # normalized; null: those of the pretrained model (init_from=) where they are known, else those
    # of the training images.
    mean: list[float] | None = None
    std: list[float] | None = None
    # split: the source's own validation images, else a share of its training set.
    # none: no validation, no best checkpoint.
    # test: validate on the test set, to follow published protocols; results are labeled as such.
    val: str = "split"
    val_fraction: float = 0.1
    # Cross-validation: split the training images into this many stratified folds, validate on
    # number cv_fold, counted from 0, and train on the others.
    cv_folds: int | None = None
    cv_fold: int | None = None
    # Stratified random subsets; those of training and validation are taken after their split.
    train_subset: int | None = None
    val_subset: int | None = None
    test_subset: int | None = None
    # How an epoch takes the training images: shuffled, each once; or balanced, as many images, but
    # every class equally often, so that those of rare classes are repeated.
    sampler: str = "shuffled"
    # Seed of the splits and subsets; not the training seed, so that runs stay comparable.
    split_seed: int = 0

    @property
    def title(self) -> str:
        """Return what the data are called in reports."""
        return self.name

    @property
    def class_count(self) -> int | None:
        """Return the number of classes, if it is known before the images are loaded."""
        return None

    def __post_init__(self) -> None:
        if self.val not in VAL_CHOICES:
            raise ValueError(f"data.val={self.val} must be one of: {', '.join(VAL_CHOICES)}")
        self.root = os.path.expanduser(self.root)
        if self.sampler not in SAMPLERS:
            raise ValueError(f"data.sampler={self.sampler} must be one of: {', '.join(SAMPLERS)}")
        if not 0 < self.val_fraction < 1:
            raise ValueError(f"data.val_fraction={self.val_fraction} must be between 0 and 1")
        for key in ("image_size", "train_subset", "val_subset", "test_subset"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ValueError(f"data.{key}={value} must be at least 1")
        self.require_fold()
        if (self.mean is None) != (self.std is None):
            raise ValueError("data.mean and data.std belong together: set both or none")
        mean, std = self.mean or [], self.std or []
        if len(mean) != len(std) or not min(std, default=1) > 0:
            raise ValueError(
                f"data.mean={mean}, data.std={std} must have one number per channel, and those of "
                "data.std must be positive"
            )
        if self.val_subset is not None and self.val == "none":
            raise ValueError(
                f"data.val_subset={self.val_subset} needs validation images: data.val=none has none"
            )

    def require_fold(self) -> None:
        """Raise ValueError unless cv_folds and cv_fold are both given, and fit, or neither is."""
        folds, fold = self.cv_folds, self.cv_fold
        if folds is None and fold is None:
            return
        if folds is None:
            raise ValueError(f"data.cv_fold={fold} needs data.cv_folds=N, the number of folds")
        if folds < 2:
            raise ValueError(f"data.cv_folds={folds} must be at least 2")
        if fold is None:
            raise ValueError(f"data.cv_folds={folds} needs data.cv_fold=0 to {folds - 1}")
        if not 0 <= fold < folds:
            raise ValueError(f"data.cv_fold={fold} must be 0 to {folds - 1}, the last of {folds}")
        if self.val != "split":
            raise ValueError(
                f"data.cv_folds={folds} validates on a part of the training images, but "
                f"data.val={self.val} does not"
            )

    def load(self) -> "Dataset":
        """Load the images; raise ValueError with what the user can do if that fails."""
        raise NotImplementedError

    @property
    def selected_on(self) -> str | None:
        """Return the split that selects the best epoch, or None."""
        return {"split": "val", "test": "test", "none": None}[self.val]


@dataclass
class ArchiveConfig(DataConfig):
    """A source that is downloaded as one archive; the preset's YAML lists the mirrors."""

    # Tried in this order; every copy is checked against the same MD5.
    urls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"data.urls: {url} must begin with http:// or https://")


@dataclass
class Cifar10Config(ArchiveConfig):
    """CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 images, 32×32, 10 classes."""

    own_size: ClassVar[int] = 32

    name: str = "cifar10"

    @property
    def class_count(self) -> int:
        return 10

    def load(self) -> "Dataset":
        from vit_train.data.published import load_cifar

        return load_cifar(self)


@dataclass
class Cifar100Config(Cifar10Config):
    """CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 images, 32×32, 100 classes."""

    name: str = "cifar100"

    @property
    def class_count(self) -> int:
        return 100


@dataclass
class Stl10Config(ArchiveConfig):
    """STL-10 (Coates, Ng and Lee 2011): 5,000 + 8,000 images, 96×96, 10 classes."""

    own_size: ClassVar[int] = 96

    name: str = "stl10"
    # Train on one of the ten official folds of 1,000 images; null takes all 5,000.
    fold: int | None = None
    # Add the 100,000 unlabeled images (2.8 GB on disk), for tasks that need no labels.
    unlabelled: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fold is not None and not 0 <= self.fold < FOLDS:
            raise ValueError(f"data.fold={self.fold} must be 0 to {FOLDS - 1}, or null for all")
        if self.fold is not None and self.cv_folds is not None:
            raise ValueError(
                f"data.fold={self.fold} trains on an official fold, data.cv_folds={self.cv_folds} "
                "makes its own: choose one of them"
            )

    @property
    def class_count(self) -> int:
        return 10

    def load(self) -> "Dataset":
        from vit_train.data.published import load_stl10

        return load_stl10(self)


@dataclass
class FolderConfig(DataConfig):
    """Your own images: root/train/CLASS/* and root/test/CLASS/*, or root/CLASS/* alone."""

    name: str = "folder"
    root: str = ""
    # Scale the shorter side to this, then crop the center.
    image_size: int | None = 64
    # Share split off for testing if the tree has neither test/ nor val/.
    test_fraction: float = 0.1
    # Files that cannot be decoded: name them and stop, or skip them.
    on_error: str = "stop"
    # Images with more pixels than this count as files that cannot be decoded.
    max_pixels: int = MAX_PIXELS
    # Keep the decoded images in the user's cache folder, for the next run.
    cache: bool = False

    @property
    def title(self) -> str:
        return printable(Path(self.root).expanduser().resolve().name) or self.name

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.root:
            raise ValueError("data.root=FOLDER must name the folder that holds your images")
        if self.image_size is None:
            raise ValueError("data.image_size must be a number for data=folder, for example 64")
        if self.on_error not in ON_ERROR_CHOICES:
            raise ValueError(
                f"data.on_error={self.on_error} must be one of: {', '.join(ON_ERROR_CHOICES)}"
            )
        if not 0 < self.test_fraction < 1:
            raise ValueError(f"data.test_fraction={self.test_fraction} must be between 0 and 1")
        if self.max_pixels < 1:
            raise ValueError(f"data.max_pixels={self.max_pixels} must be at least 1")

    def load(self) -> "Dataset":
        from vit_train.data.folder import load_folder

        return load_folder(self)


@dataclass
class ShapesConfig(DataConfig):
    """The built-in data: geometric shapes drawn from a seed."""

    own_size: ClassVar[int] = 32

    name: str = "shapes"
    # The number of kinds of shapes (2 to 10), of training and of test images, and the seed that
    # draws them.
    num_classes: int = 10
    train_images: int = 10_000
    test_images: int = 2_000
    draw_seed: int = 0

    @property
    def class_count(self) -> int:
        return self.num_classes

    def load(self) -> "Dataset":
        from vit_train.data.shapes import load_shapes

        return load_shapes(self)


# All that data= can choose.
DATA_CONFIGS: dict[str, type[DataConfig]] = {
    "cifar10": Cifar10Config,
    "cifar100": Cifar100Config,
    "stl10": Stl10Config,
    "folder": FolderConfig,
    "shapes": ShapesConfig,
}
