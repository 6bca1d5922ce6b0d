"""Where the maps of a model's answers lie, in numbers and in words."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Focus:
    """Where the maps of some images lie, and what becomes of the answers without what they mark.

    All but `images` are shares.
    """

    images: int
    # Of the patches, highest first, those that hold half of a map.
    patches_of_half: float
    # Of a map, what lies in the middle quarter of the image.
    middle: float
    # Of the patches, those that are deleted, and of the answers, those that change by it.
    deleted: float
    changed: float
    changed_at_random: float

    @property
    def in_words(self) -> str:
        return (
            f"In {self.images:,} of the images, half of what spoke for the answer lies on "
            f"{percent(self.patches_of_half)} of the patches, and {percent(self.middle)} of it in "
            f"the middle quarter of the image. Without the {percent(self.deleted)} of the patches "
            f"that the maps mark most, {percent(self.changed)} of the answers change; without as "
            f"many at random, {percent(self.changed_at_random)}. {self.verdict}"
        )

    @property
    def verdict(self) -> str:
        both = (self.changed, self.changed_at_random)
        error = math.sqrt(sum(share * (1 - share) for share in both) / self.images)
        if self.changed - self.changed_at_random > 2 * error:
            return "So the maps show what the answers depend on."
        return "So the maps hardly show what the answers depend on."


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"
