"""Attention as maps over the patches: which of them a prediction comes from."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


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
    """Return what of each token raised an output, through attention: (B,T,T).

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


def answer_maps(
    model: nn.Module,
    images: Tensor,
    has_class: bool,
    method: str = "relevance",
    layer: int = -1,
    target: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return maps (B,G,G), logits (B,K) and the explained classes (B,) of normalized images.

    The explained class is each image's `target` (B,) or, without one, its predicted class. The
    methods are those of `attribution`; `layer` is for attention alone.
    """
    by_gradient = method == "relevance"
    images = images.detach().requires_grad_(by_gradient)  # the weights may be frozen, or averages
    with torch.set_grad_enabled(by_gradient):
        logits, layers = model.forward(images, return_attention=True)
        targets = logits.argmax(dim=1) if target is None else target
        if by_gradient:
            chosen = logits.gather(1, targets.unsqueeze(1)).sum()
            matrix = relevance(layers, torch.autograd.grad(chosen, layers))
        elif method == "rollout":
            matrix = rollout(layers)
        else:
            matrix = layers[layer].mean(dim=1)  # over the heads: (B,T,T)
    return of_answer(matrix, has_class).detach(), logits.detach(), targets
