"""The settings of augmentation."""

from dataclasses import dataclass
from typing import ClassVar

from vit_train.config.fields import Settings, setting


@dataclass
class AugmentConfig(Settings):
    """Settings of augmentation, in the order of its steps; each image has its own random draws."""

    group: ClassVar[str] = "augment"
    kept_by_fork = False

    crop_padding: int = setting(
        4,
        "Pad every side by this many black pixels, then crop to the image size at a random "
        "position.",
        at_least=0,
    )
    flip: bool | str = setting(
        True,
        "true: mirror each image with probability ½; alternate: mirror a random half of the images "
        "in odd epochs and the other half in even epochs, so that two epochs show both sides of "
        "each image (Jordan 2024); false: never.",
        choices=(True, False, "alternate"),
    )
    crop_scale: float | None = setting(
        None,
        "Crop a random rectangle with at least this share of the image's area, and stretch the "
        "rectangle to the image size; null: off.",
        above=0,
        at_most=1,
    )
    vertical_flip: bool = setting(
        False,
        "Turn each image upside down with probability ½: for images without an up, such as "
        "micrographs.",
    )
    rotation: float = setting(
        0.0,
        "Rotate each image by a random angle of up to this many degrees either way; 180: any "
        "angle. Corners become black.",
        at_least=0,
        at_most=180,
    )
    policy: str = setting(
        "none",
        "Color and geometric operations: none, randaugment, trivialaugment or autoaugment.",
        choices=("none", "randaugment", "trivialaugment", "autoaugment"),
    )
    policy_epochs: int | None = setting(
        None,
        "Number of epochs after which augment.policy is turned off; null: never.",
        at_least=1,
    )
    magnitude: int = setting(
        9,
        "Strength of the operations, 0 to 30; only for augment.policy=randaugment.",
        at_least=0,
        at_most=30,
    )
    color_jitter: float = setting(
        0.0,
        "Multiply brightness, contrast and saturation each by a random factor in 1 ± this.",
        at_least=0,
        at_most=1,
    )
    blur: float = setting(
        0.0,
        "Blur each image with a Gaussian whose standard deviation is random, from 0 to this many "
        "pixels.",
        at_least=0,
    )
    erase_prob: float = setting(
        0.0,
        "Random erasing: probability of replacing a rectangle of the image with the mean color.",
        at_least=0,
        at_most=1,
    )
    mixup_alpha: float | None = setting(
        None,
        "Mixup: the mixing proportion of each image is drawn from Beta(α, α) with this α; null: "
        "off. If cutmix_alpha is also set, each image gets either Mixup or CutMix, with equal "
        "chances.",
        above=0,
    )
    cutmix_alpha: float | None = setting(
        None,
        "CutMix: the mixing proportion of each image is drawn from Beta(α, α) with this α; null: "
        "off.",
        above=0,
    )
    mix_prob: float = setting(
        1.0,
        "Probability that Mixup or CutMix mixes an image with another image.",
        at_least=0,
        at_most=1,
    )
    mix_epochs: int | None = setting(
        None,
        "Number of epochs after which Mixup and CutMix are turned off; null: never.",
        at_least=1,
    )
