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
    drawn = torch.empty_like(like)
    if PER_IMAGE.generators is None:
        return drawn.bernoulli_(probability)
    for image, generator in zip(drawn, PER_IMAGE.generators(), strict=True):
        image.bernoulli_(probability, generator=generator)
    return drawn
