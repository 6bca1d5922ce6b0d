"""The order in which an epoch takes its images."""

import numpy as np
import torch
from torch import Tensor


def shuffled(labels: Tensor, rng: np.random.Generator) -> Tensor:
    """Return the indices of all images (N,) in a random order."""
    return torch.from_numpy(rng.permutation(len(labels)))


def balanced(labels: Tensor, rng: np.random.Generator) -> Tensor:
    """Return as many indices as there are labels (N,), every class equally often, to within one.

    The images of a small class are repeated, each as often as the others of its class to within
    one; a large class contributes a random part.
    """
    classes = [np.flatnonzero(labels.numpy() == label) for label in labels.unique().tolist()]
    counts = np.full(len(classes), len(labels) // len(classes))
    counts[rng.permutation(len(classes))[: len(labels) % len(classes)]] += 1
    taken = []
    for members, count in zip(classes, counts, strict=True):
        rounds = [rng.permutation(members) for _ in range(-(-count // len(members)))]
        taken.append(np.concatenate(rounds)[:count])
    return torch.from_numpy(rng.permutation(np.concatenate(taken)))


# All that data.sampler can choose: see SAMPLERS in data/config.py, which is torch-free.
ORDERS = {"shuffled": shuffled, "balanced": balanced}
