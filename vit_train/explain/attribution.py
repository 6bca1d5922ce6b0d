"""Attention as maps over the patches, and scores of how well they show what matters."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from vit_train.base.text import counted


def layer_index(layer: int, depth: int, owner: str) -> int:
    """Return the index of a `layer` counted from 1, or from the end if it is negative.

    Raise ValueError for a layer that the `owner` does not have.
    """
    if not 1 <= abs(layer) <= depth:
        raise ValueError(f"layer={layer}: the {owner} has the layers 1 to {depth}")
    return layer - 1 if layer > 0 else depth + layer


def rollout(layers: Sequence[Tensor]) -> Tensor:
    """Return the attention of all layers one after the other (Abnar & Zuidema 2020): (B,T,T).

    Each layer is ½ (mean over heads + I), because the residual keeps every token.
    """
    together = identity(layers[0])
    for weights in layers:
        together = (weights.mean(dim=1) @ together + together) / 2
    return together


def relevance(layers: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """Return the share of each token in raising an output, through attention: (B,T,T).

    `gradients` are those of the output with respect to the `layers`. Only what speaks for the
    output counts: R ← R + mean over heads of (∂y/∂A ⊙ A)⁺ · R, beginning with R = I (Chefer et al.
    2021, arXiv:2103.15679, equations 5 and 6).
    """
    together = identity(layers[0])
    for weights, gradient in zip(layers, gradients, strict=True):
        speaking_for = (weights * gradient).clamp(min=0).mean(dim=1)
        together = together + speaking_for @ together
    return together


def identity(weights: Tensor) -> Tensor:
    """Return the identity (T,T) in the type of (B,H,T,T), where every token is its own."""
    return torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device)


def of_answer(matrix: Tensor, has_class: bool) -> Tensor:
    """Return maps over the patches of what is classified: (B,T,T) → (B,G,G).

    That is the row of the class token or, without one, the mean over all patches. A patch's own
    share, which only says that it is itself, is left out of that mean.
    """
    if has_class:
        row = matrix[:, 0, 1:]
    else:
        row = (matrix - torch.diag_embed(matrix.diagonal(dim1=1, dim2=2))).mean(dim=1)
    grid = math.isqrt(row.shape[1])
    return row.unflatten(1, (grid, grid))  # type: ignore[no-any-return]


def attention_distances(weights: Tensor, has_class: bool, patch_size: int) -> Tensor:
    """Return how far each head looks, in pixels: attention of one layer (B,H,T,T) → (H,).

    It is the distance between a patch and those it attends to, weighted by the attention and
    averaged over patches and images (Dosovitskiy et al. 2021, figure 7). The class token has no
    place and is left out.
    """
    first = int(has_class)
    patches = weights[:, :, first:, first:]
    grid = math.isqrt(patches.shape[-1])
    place = torch.arange(grid, dtype=weights.dtype, device=weights.device)
    places = torch.stack(torch.meshgrid(place, place, indexing="ij"), dim=-1).flatten(0, 1)
    distance = torch.cdist(places, places) * patch_size  # (N,N)
    shares = patches / patches.sum(dim=-1, keepdim=True).clamp(min=1e-12)
    return (shares * distance).sum(dim=-1).mean(dim=(0, 2))


def even_distance(grid: int, patch_size: int) -> float:
    """Return how far a head looks, in pixels, that attends to all of the patches alike."""
    even = torch.ones(1, 1, grid**2, grid**2)
    return attention_distances(even, has_class=False, patch_size=patch_size).item()


def principal_filters(weight: Tensor, count: int) -> tuple[Tensor, list[float]]:
    """Return principal components of filters (D,C,P,P), the strongest first, (count,C,P,P).

    With each comes its share of the variance (Dosovitskiy et al. 2021, figure 7, left). The sign of
    a component has no meaning.
    """
    flat = weight.detach().double().flatten(1)
    _, singular, components = torch.linalg.svd(flat - flat.mean(0), full_matrices=False)
    shares = singular.square() / singular.square().sum().clamp(min=1e-30)
    return components[:count].unflatten(1, weight.shape[1:]), shares[:count].tolist()


class Attentive(Protocol):
    """A classifier that can return its attention."""

    def forward(self, images: Tensor, return_attention: bool, /) -> tuple[Tensor, list[Tensor]]:
        """Return logits (B,K), and the attention (B,H,T,T) of every layer."""
        ...


class Explained(NamedTuple):
    """Maps (B,G,G) of images, their logits (B,K), and the explained classes (B,)."""

    maps: Tensor
    logits: Tensor
    classes: Tensor


def answer_maps(
    model: Attentive,
    images: Tensor,
    has_class: bool,
    method: str = "relevance",
    layer: int = -1,
    target: Tensor | None = None,
) -> Explained:
    """Explain the predictions for normalized images.

    The explained class is each image's `target` (B,) or, without one, its predicted class. The
    methods are those of `attribution`; `layer` is for attention alone.
    """
    by_gradient = method == "relevance"
    images = images.detach().requires_grad_(by_gradient)  # the weights may be frozen, or averages
    with torch.set_grad_enabled(by_gradient):
        logits, layers = model.forward(images, True)
        targets = logits.argmax(dim=1) if target is None else target
        if by_gradient:
            chosen = logits.gather(1, targets.unsqueeze(1)).sum()
            matrix = relevance(layers, torch.autograd.grad(chosen, layers))
        elif method == "rollout":
            matrix = rollout(layers)
        else:
            matrix = layers[layer].mean(dim=1)  # over the heads: (B,T,T)
    return Explained(of_answer(matrix, has_class).detach(), logits.detach(), targets)


class Pointing(NamedTuple):
    """Hits, bool (N,), and the share of all patches that would be a hit: chance, (N,)."""

    hits: Tensor
    chance: Tensor


def pointing_hits(maps: Tensor, masks: Tensor) -> Pointing:
    """Play the pointing game (Zhang et al. 2018): look whether the highest patch is on the object.

    A patch is on the object if this covers more than half of it. Maps are (N,G,G) and the objects'
    masks bool (N,S,S).
    """
    grid = maps.shape[1]
    covered = masks.unflatten(1, (grid, -1)).unflatten(3, (grid, -1)).double().mean(dim=(2, 4))
    on_object = (covered > 0.5).flatten(1)  # (N,G²)
    highest = maps.flatten(1).argmax(dim=1, keepdim=True)
    return Pointing(on_object.gather(1, highest).squeeze(1), on_object.double().mean(dim=1))


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
            f"{percent(self.middle)} of it. Removing the {percent(self.deleted)} most relevant "
            f"patches changes {percent(self.changed)} of the predictions; removing random patches, "
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
