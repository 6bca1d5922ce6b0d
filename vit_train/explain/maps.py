"""Maps over the patches of images: where a classifier's predictions come from."""

import torch
from torch import Tensor, nn

from vit_train.explain.attribution import of_answer, relevance, rollout


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
