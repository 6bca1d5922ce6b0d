"""How well maps show where a prediction comes from, and how much of the image they mark."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vit_train.files.text import counted


def pointing_hits(maps: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Play the pointing game (Zhang et al. 2018): look whether the highest patch is on the object.

    A patch is on the object if this covers more than half of it. Maps are (N,G,G) and the objects'
    masks bool (N,S,S). The results are the hits, bool (N,), and the share of all patches that
    would be a hit, (N,), which is what chance reaches.
    """
    grid = maps.shape[1]
    covered = masks.unflatten(1, (grid, -1)).unflatten(3, (grid, -1)).double().mean(dim=(2, 4))
    on_object = (covered > 0.5).flatten(1)  # (N,G²)
    highest = maps.flatten(1).argmax(dim=1, keepdim=True)
    return on_object.gather(1, highest).squeeze(1), on_object.double().mean(dim=1)


def without_patches(images: Tensor, order: Tensor, count: int, patch_size: int) -> Tensor:
    """Replace the first `count` patches in `order` (N,G²) by zeros: (N,C,S,S) → (N,C,S,S).

    In normalized images zero is the mean color.
    """
    side = images.shape[-1] // patch_size
    keep = torch.ones(order.shape, dtype=images.dtype, device=images.device)
    keep.scatter_(1, order[:, :count], 0)
    keep = keep.unflatten(1, (side, side)).unsqueeze(1)
    less: Tensor = images * keep.repeat_interleave(patch_size, 2).repeat_interleave(patch_size, 3)
    return less


def patches_of_half(maps: Tensor) -> Tensor:
    """Return the share of the patches, highest first, that hold half of each map: (N,G,G) → (N,).

    A map without any relevance counts as even.
    """
    shares = as_shares(maps).flatten(1).sort(dim=1, descending=True).values
    needed = (shares.cumsum(dim=1) < 0.5 - 1e-9).sum(dim=1) + 1
    return needed / shares.shape[1]


def middle_share(maps: Tensor) -> Tensor:
    """Return how much of each map lies in the middle quarter of the image: (N,G,G) → (N,).

    A patch that is in it in part counts in part, so that an even map always has a quarter.
    """
    grid = maps.shape[1]
    edges = torch.arange(grid + 1, dtype=torch.float64) / grid
    inside = edges.clamp(0.25, 0.75).diff() * grid  # (G,), of each row of patches
    return (as_shares(maps) * torch.outer(inside, inside)).sum(dim=(1, 2))


def as_shares(maps: Tensor) -> Tensor:
    """Scale maps without negative values (N,G,G) to sum 1, in float64."""
    maps = maps.double()
    total = maps.sum(dim=(1, 2), keepdim=True)
    return torch.where(total > 0, maps / total.clamp(min=1e-300), 1 / maps[0].numel())


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
