"""Settings of data augmentation."""

from dataclasses import dataclass
from typing import ClassVar

from vit_train.files.setting import Settings, setting

POLICY_NAMES = ("none", "randaugment", "trivialaugment", "autoaugment")
# RandAugment's authors tried up to 3; each costs as much as all other augmentation together.
MOST_OPS = 100


@dataclass
class AugmentConfig(Settings):
    """Augmentation settings. Each draw is made per image, in the order of these fields."""

    group: ClassVar[str] = "augment"

    crop_padding: int = setting(
        4, "Pad by this many black pixels, then crop to the image size at random.", at_least=0
    )
    flip: bool = setting(True, "Mirror each image with probability ½.")
    crop_scale: float | None = setting(
        None,
        "Crop at least this share of the image's area and stretch it to full size; null: no crop.",
        above=0,
        at_most=1,
    )
    policy: str = setting(
        "none",
        "Color and geometric operations: none, randaugment, trivialaugment or autoaugment.",
        choices=POLICY_NAMES,
    )
    num_ops: int = setting(
        2, "Operations per image; only for randaugment.", at_least=1, at_most=MOST_OPS
    )
    magnitude: int = setting(
        9, "Strength of the operations, 0 to 30; only for randaugment.", at_least=0, at_most=30
    )
    erase_prob: float = setting(
        0.0,
        "Probability that a rectangle is replaced by the mean color.",
        at_least=0,
        at_most=1,
    )
    erase_area: float = setting(
        0.33, "Largest share of the image's area that is erased.", at_least=0.02, below=1
    )
    mixup_alpha: float | None = setting(
        None,
        "Mixup: α of the Beta distribution; null: off. With cutmix_alpha, too, each image draws "
        "one of the two.",
        above=0,
    )
    cutmix_alpha: float | None = setting(
        None, "CutMix: α of the Beta distribution; null: off.", above=0
    )
    mix_prob: float = setting(
        1.0, "Probability that an image is mixed with another.", at_least=0, at_most=1
    )
