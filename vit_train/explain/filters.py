"""What a patch embedding looks for."""

import torch
from torch import Tensor


def principal_filters(weight: Tensor, count: int) -> tuple[Tensor, list[float]]:
    """Return principal components of filters (D,C,P,P), the strongest first, (count,C,P,P).

    With each comes its share of the variance (Dosovitskiy et al. 2021, figure 7, left). The sign of
    a component has no meaning.
    """
    flat = weight.detach().double().flatten(1)
    _, singular, components = torch.linalg.svd(flat - flat.mean(0), full_matrices=False)
    shares = singular.square() / singular.square().sum().clamp(min=1e-30)
    return components[:count].unflatten(1, weight.shape[1:]), shares[:count].tolist()
