"""Random numbers for dropout that depend on the image, not on threads or timing."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
from torch import Tensor


class ThreadGenerators(threading.local):
    """Thread-local storage for a function that returns one generator for each image of a batch.

    In a thread without this function (None), dropout uses PyTorch's global generator.
    """

    generators: Callable[[], list[torch.Generator]] | None = None


PER_IMAGE = ThreadGenerators()


@contextlib.contextmanager
def per_image_generators(seed: int, step: int, indices: Iterable[int]) -> Iterator[None]:
    """Within the block, use a separate random generator for each image in this thread.

    `indices` are the indices of this thread's images in the whole batch. A generator depends only
    on the seed, the step and the image's index, so that an image gets the same dropout however the
    batch is split among threads.
    """
    # Making generators takes time, and most models do not need them.
    PER_IMAGE.generators = functools.cache(
        lambda: [seeded_generator(seed, step, index) for index in indices]
    )
    try:
        yield
    finally:
        PER_IMAGE.generators = None


def seeded_generator(seed: int, *key: int) -> torch.Generator:
    """Return a PyTorch generator that NumPy's SeedSequence seeds from `seed` and `key`."""
    state = np.random.SeedSequence(seed, spawn_key=key).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def bernoulli(like: Tensor, probability: float) -> Tensor:
    """Return a tensor shaped like `like` (B,…): each value is 1 with `probability`, otherwise 0."""
    return filled(torch.empty_like(like), Tensor.bernoulli_, probability)


def uniform(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Return a tensor of `shape` (B,…) with values drawn uniformly from [0, 1)."""
    return filled(torch.empty(shape, device=device), Tensor.uniform_)


def filled(tensor: Tensor, draw: Callable[..., Tensor], *arguments: float) -> Tensor:
    """Fill each image's part of the tensor (B,…) by `draw`, a method such as `Tensor.uniform_`."""
    if PER_IMAGE.generators is None:
        return draw(tensor, *arguments)
    for image, generator in zip(tensor, PER_IMAGE.generators(), strict=True):
        draw(image, *arguments, generator=generator)
    return tensor
