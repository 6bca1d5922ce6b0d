"""Random numbers for dropout that belong to the image, whoever asks for them and when."""

import contextlib
import threading
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor


class ThreadNoise(threading.local):
    """This thread's generators, one an image; None is PyTorch's own, which all threads share."""

    generators: list[torch.Generator] | None = None


NOISE = ThreadNoise()


@contextlib.contextmanager
def noise_from(seed: int, step: int, places: Iterable[int]) -> Iterator[None]:
    """Within the block this thread's images, at these places of the step's batch, have own noise.

    It is a pure function of the three numbers: the same however the batch is cut into pieces.
    """
    NOISE.generators = [generator_of(seed, step, place) for place in places]
    try:
        yield
    finally:
        NOISE.generators = None


def generator_of(seed: int, *place: int) -> torch.Generator:
    state = np.random.SeedSequence(seed, spawn_key=place).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state >> np.uint64(1)))


def ones_and_zeros(like: Tensor, chance: float) -> Tensor:
    """Of the shape of `like` (B,…), each value 1 with this chance."""
    drawn = torch.empty_like(like)
    if NOISE.generators is None:
        return drawn.bernoulli_(chance)
    for image, own in zip(drawn, NOISE.generators, strict=True):
        image.bernoulli_(chance, generator=own)
    return drawn
