"""Settings of data augmentation.

This module does not import torch, so that an invalid value is refused at once.
"""

from dataclasses import dataclass

POLICY_NAMES = ("none", "randaugment", "trivialaugment", "autoaugment")
# RandAugment's authors tried up to 3; each costs as much as all other augmentation together.
MOST_OPS = 100


@dataclass
class AugmentConfig:
    """Augmentation settings. Each draw is made per image, in the order of these fields."""

    # Pad by this many black pixels, then crop back to the image size at a random place.
    crop_padding: int = 4
    # Mirror each image with probability ½.
    flip: bool = True
    # Crop at least this share of the image's area and stretch it to full size; null turns it off.
    crop_scale: float | None = None
    # Color and geometric operations; num_ops and magnitude (0 to 30) apply to RandAugment alone.
    policy: str = "none"
    num_ops: int = 2
    magnitude: int = 9
    # Probability that a rectangle is replaced by the mean color, and its largest share of the area.
    erase_prob: float = 0.0
    erase_area: float = 0.33
    # Mix an image and its label with another's, with probability mix_prob: α of the Beta
    # distribution; null turns it off. With both set, one of the two is drawn for each image.
    mixup_alpha: float | None = None
    cutmix_alpha: float | None = None
    mix_prob: float = 1.0

    def __post_init__(self) -> None:
        if self.crop_scale is not None and not 0 < self.crop_scale <= 1:
            raise ValueError(f"augment.crop_scale={self.crop_scale} must be in (0, 1], or null")
        if self.crop_padding < 0:
            raise ValueError(f"augment.crop_padding={self.crop_padding} must not be negative")
        if self.policy not in POLICY_NAMES:
            raise ValueError(
                f"augment.policy={self.policy} must be one of: {', '.join(POLICY_NAMES)}"
            )
        if not 1 <= self.num_ops <= MOST_OPS:
            raise ValueError(f"augment.num_ops={self.num_ops} must be between 1 and {MOST_OPS}")
        if not 0 <= self.magnitude <= 30:
            raise ValueError(f"augment.magnitude={self.magnitude} must be between 0 and 30")
        for field in ("erase_prob", "mix_prob"):
            if not 0 <= getattr(self, field) <= 1:
                raise ValueError(f"augment.{field}={getattr(self, field)} must be in [0, 1]")
        if not 0.02 <= self.erase_area < 1:
            raise ValueError(f"augment.erase_area={self.erase_area} must be in [0.02, 1)")
        for field in ("mixup_alpha", "cutmix_alpha"):
            value = getattr(self, field)
            if value is not None and value <= 0:
                raise ValueError(f"augment.{field}={value} must be positive, or null")
