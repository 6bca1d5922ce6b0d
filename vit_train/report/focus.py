"""Where the maps of a model's predictions lie, in numbers and in words."""

from dataclasses import dataclass

from vit_train.text import counted

# Fewer images say nothing.
FEW = 30


@dataclass(frozen=True)
class Focus:
    """Where the maps of some images lie, and which predictions change without those patches."""

    images: int
    # Shares: of the patches, highest first, those that hold half of a map; of a map, what lies in
    # the middle quarter of the image.
    patches_of_half: float
    middle: float
    # Shares: of the patches, those that are deleted; of the predictions, those that change when
    # these are the ones that the maps mark most, and when they are drawn at random.
    deleted: float
    changed: float
    changed_at_random: float
    # How probable so unequal changes are if the maps mark nothing: McNemar's exact test.
    p_value: float

    @property
    def in_words(self) -> str:
        return (
            f"In {counted(self.images, 'image')}, {percent(self.patches_of_half)} of the patches "
            "hold half of the relevance; the central quarter of the image holds "
            f"{percent(self.middle)} of it. Without the {percent(self.deleted)} of the patches "
            "that the maps mark most, "
            f"{percent(self.changed)} of the predictions change; without as many random ones, "
            f"{percent(self.changed_at_random)}. {self.verdict}"
        )

    @property
    def verdict(self) -> str:
        if self.images < FEW:
            return "So few images do not tell whether the maps show what the predictions depend on."
        if self.p_value >= 0.05:
            return (
                "That may be chance: these images do not tell whether the maps show what the "
                "predictions depend on."
            )
        if self.changed > self.changed_at_random:
            return "So the maps show what the predictions depend on."
        return "So the maps hardly show what the predictions depend on."


def percent(share: float) -> str:
    return f"{100 * share:.0f} %"
