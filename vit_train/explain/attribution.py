"""Maps of attention over the patches, and scores of how well maps mark important patches."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vit_train.config.fields import Size
from vit_train.model.vit import VisionTransformer


def rollout(layers: Sequence[Tensor]) -> Tensor:
    """Return attention rollout, the product of all layers' attention: (B,T,T).

    `layers` holds the attention (B,H,T,T) of each layer. Each layer's factor is
    ½ (mean over heads + I); the identity I stands for the residual connection (Abnar & Zuidema
    2020).
    """
    return product_of_layers([weights.mean(dim=1) for weights in layers], 0.5)


def relevance(layers: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """Return how much each token raised the output y through attention: (B,T,T).

    `layers` holds the attention A (B,H,T,T) of each layer, and `gradients` holds ∂y/∂A. Only
    positive contributions count: R ← R + mean over heads of (∂y/∂A ⊙ A)⁺ · R, beginning with R = I
    (Chefer et al. 2021, arXiv:2103.15679, equations 5 and 6).
    """
    products = map(torch.mul, layers, gradients)
    return product_of_layers([each.clamp(min=0).mean(dim=1) for each in products], 1)


def product_of_layers(matrices: Sequence[Tensor], factor: float) -> Tensor:
    """Return the product of the layers' `factor` · (matrix + I), (B,T,T), the last layer first."""
    product = torch.eye(matrices[0].shape[-1]).to(matrices[0])
    for matrix in matrices:
        product = factor * (matrix @ product + product)
    return product


def patch_maps(matrix: Tensor, grid: Size, has_class: bool, registers: int = 0) -> Tensor:
    """Return a map over the grid of patches for each matrix between tokens: (B,T,T) → (B,R,C).

    A map is the class token's row of the matrix. Without a class token, it is the mean of the
    patches' rows, with zeros on the diagonal. The class token and the `registers` after it have no
    place in the map.
    """
    if has_class:
        row = matrix[:, 0, 1 + registers :]
    else:
        between = matrix[:, registers:, registers:]
        row = (between - torch.diag_embed(between.diagonal(dim1=1, dim2=2))).mean(dim=1)
    return row.unflatten(1, grid)  # type: ignore[no-any-return]


def attention_distances(weights: Tensor, grid: Size, prefix: int, patch_size: int) -> Tensor:
    """Return the mean attention distance, in pixels, of each head in a layer: (B,H,T,T) → (H,).

    A patch's attention distance is its mean distance to all patches, weighted by its attention to
    them. A head's attention distance is the mean over patches and images (Dosovitskiy et al. 2021,
    figure 7). The first `prefix` tokens, such as the class token, have no place in the image and
    are left out.
    """
    patches = weights[:, :, prefix:, prefix:]
    along = (torch.arange(side, dtype=weights.dtype, device=weights.device) for side in grid)
    places = torch.cartesian_prod(*along)
    distance = torch.cdist(places, places) * patch_size  # (N,N)
    shares = patches / patches.sum(dim=-1, keepdim=True).clamp(min=1e-12)
    return (shares * distance).sum(dim=-1).mean(dim=(0, 2))


def even_distance(grid: Size, patch_size: int) -> float:
    """Return the mean attention distance, in pixels, of a head with uniform attention."""
    count = math.prod(grid)
    return attention_distances(torch.ones(1, 1, count, count), grid, 0, patch_size).item()


def principal_filters(weight: Tensor, count: int) -> tuple[Tensor, list[float]]:
    """Return the first `count` principal components (count,C,P,P) of filters (D,C,P,P).

    Also return each component's share of the variance, the highest first (Dosovitskiy et al. 2021,
    figure 7, left). The sign of a component has no meaning.
    """
    flat = weight.detach().double().flatten(1)
    _, singular, components = torch.linalg.svd(flat - flat.mean(0), full_matrices=False)
    shares = singular.square() / singular.square().sum().clamp(min=1e-30)
    return components[:count].unflatten(1, weight.shape[1:]), shares[:count].tolist()


def prediction_maps(
    model: VisionTransformer,
    images: Tensor,
    method: str = "relevance",
    layer: int = -1,
    target: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return maps (B,R,C) and the explained classes (B,) for normalized images (B,C,H,W).

    The explained classes are `target` (B,) or, if it is None, the predicted classes. `layer` is the
    index of a layer, used only by method="attention".
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
    config = model.config
    maps = patch_maps(matrix, model.grid, config.has_class_token, config.registers)
    return maps.detach(), targets


def pointing_hits(maps: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Play the pointing game (Zhang et al. 2018): a map hits if its highest patch is on the object.

    A patch is on the object if the object covers more than half of the patch. The maps are (N,R,C),
    and the objects' masks are bool (N,H,W). Return the hits, bool (N,), and the probability (N,)
    that a random patch hits.
    """
    rows, columns = maps.shape[1:]
    covered = F.adaptive_avg_pool2d(masks.double(), (rows, columns))
    on_object = (covered > 0.5).flatten(1)  # (N,R·C)
    highest = maps.flatten(1).argmax(dim=1, keepdim=True)
    return on_object.gather(1, highest).squeeze(1), on_object.double().mean(dim=1)


def deletion_orders(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Return two orders (N,R·C) in which to delete the patches of images with maps (N,R,C).

    The first deletes the patches with the highest values first; the second is random.
    """
    marked = maps.flatten(1).argsort(dim=1, descending=True)
    generator = torch.Generator().manual_seed(0)
    return marked, torch.rand(marked.shape, generator=generator).argsort(dim=1)
