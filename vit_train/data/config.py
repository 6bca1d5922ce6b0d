"""What can be said about the data; torch-free, so that a bad value is refused at once."""

from dataclasses import dataclass

VAL_CHOICES = ("split", "none", "test")


@dataclass
class DataConfig:
    """What every source understands. `name` selects the source."""

    name: str = "???"
    # The folder that holds the data sets.
    root: str = "${oc.env:VIT_TRAIN_DATA,data}"
    download: bool = False
    # Every image is resized to this, once, when it is loaded; null keeps the source's own size.
    image_size: int | None = None
    # split: a tenth of the training set. none: no validation, no best checkpoint.
    # test: validate on the test set, to repeat others' protocols; results are labelled so.
    val: str = "split"
    val_fraction: float = 0.1
    # Stratified random subsets; the training subset is taken after validation is set apart.
    train_subset: int | None = None
    test_subset: int | None = None
    # Draws the splits and subsets, apart from the training seed: runs stay comparable.
    split_seed: int = 0

    def __post_init__(self) -> None:
        if self.val not in VAL_CHOICES:
            raise ValueError(f"data.val={self.val} must be one of: {', '.join(VAL_CHOICES)}")
        if not 0 < self.val_fraction < 1:
            raise ValueError(f"data.val_fraction={self.val_fraction} must be between 0 and 1")
        for field in ("image_size", "train_subset", "test_subset"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ValueError(f"data.{field}={value} must be at least 1")


@dataclass
class Cifar10Config(DataConfig):
    """CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 images, 32×32, 10 classes."""

    name: str = "cifar10"


@dataclass
class ShapesConfig(DataConfig):
    """The built-in data: figures drawn from a seed."""

    name: str = "shapes"
    num_classes: int = 10
    train_images: int = 10_000
    test_images: int = 2_000
    draw_seed: int = 0


DATA_CONFIGS: dict[str, type[DataConfig]] = {"cifar10": Cifar10Config, "shapes": ShapesConfig}


@dataclass
class AugmentConfig:
    """How training images vary; each draw is made per image."""

    # Pad by this many black pixels, then crop back to the image size at a random place.
    crop_padding: int = 4
    flip: bool = True

    def __post_init__(self) -> None:
        if self.crop_padding < 0:
            raise ValueError(f"augment.crop_padding={self.crop_padding} must not be negative")
