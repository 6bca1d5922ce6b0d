"""Random numbers for dropout that do not depend on which thread asks first."""

import contextlib
import threading
from collections.abc import Iterator

import numpy as np
import torch


class ThreadNoise(threading.local):
    """This thread's generator; None is PyTorch's own, which all threads share."""

    generator: torch.Generator | None = None


NOISE = ThreadNoise()


@contextlib.contextmanager
def noise_from(*seed: int) -> Iterator[None]:
    """Within the block this thread's dropout on a CPU is a pure function of these numbers."""
    state = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]
    NOISE.generator = torch.Generator().manual_seed(int(state >> np.uint64(1)))
    try:
        yield
    finally:
        NOISE.generator = None
