"""Random numbers for dropout that belong to the image, whoever asks for them and when."""

import contextlib
import threading
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor


class ThreadGenerators(threading.local):
    """This thread's generators, one an image; None is PyTorch's own, which all threads share."""

    generators: list[torch.Generator] | None = None


PER_IMAGE = ThreadGenerators()


@contextlib.contextmanager
def per_image_generators(seed: int, step: int, places: Iterable[int]) -> Iterator[None]:
    """Within the block this thread's images, at these places of the step's batch, have own noise.

    It is a pure function of the three numbers: the same however the batch is cut into pieces.
    """
    PER_IMAGE.generators = [seeded_generator(seed, step, place) for place in places]
    try:
        yield
    finally:
        PER_IMAGE.generators = None


def seeded_generator(seed: int, *place: int) -> torch.Generator:
    state = np.random.SeedSequence(seed, spawn_key=place).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def bernoulli(like: Tensor, chance: float) -> Tensor:
    """Of the shape of `like` (B,…), each value 1 with this chance."""
    drawn = torch.empty_like(like)
    if PER_IMAGE.generators is None:
        return drawn.bernoulli_(chance)
    for image, own in zip(drawn, PER_IMAGE.generators, strict=True):
        image.bernoulli_(chance, generator=own)
    return drawn
