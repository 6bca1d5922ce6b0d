"""Averages over training steps: the points of the training curves."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class AveragesState:
    """The sums (M,) of the measures over so many images, and the seconds that they took."""

    sums: Tensor
    images: int
    seconds: float


class Averages:
    """Sums kept on the device, so that the loop never waits for it between two logs.

    They are always the same tensors, so that a CUDA graph can add to them.
    """

    def __init__(self, measures: Sequence[str], device: torch.device) -> None:
        self.measures = measures
        self.sums = torch.zeros(len(measures), device=device)
        self.images = torch.zeros((), dtype=torch.long, device=device)
        self.started = time.perf_counter()

    def add(self, sums: Tensor, images: Tensor) -> None:
        self.sums += sums
        self.images += images

    def reset(self) -> None:
        self.sums.zero_()
        self.images.zero_()
        self.started = time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """Exclude time that was not spent on these images from the speed."""
        self.started += seconds

    def read(self) -> tuple[dict[str, float], float]:
        """Return the means and the images per second. This waits for the device."""
        images = int(self.images)
        speed = images / (time.perf_counter() - self.started)
        means = (self.sums / images).tolist()  # NaN if all steps were left out
        return dict(zip(self.measures, means, strict=True)), speed

    def state(self) -> AveragesState:
        seconds = time.perf_counter() - self.started
        return AveragesState(self.sums, int(self.images), seconds)

    def restore(self, state: AveragesState) -> None:
        self.sums.copy_(state.sums)
        self.images.fill_(state.images)
        self.started = time.perf_counter() - state.seconds
