"""Averages over training steps: the points of the training curves."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Averages:
    """Sums kept on the device, so that the loop never waits for it between two logs."""

    def __init__(self, measures: Sequence[str], device: torch.device) -> None:
        self.measures = measures
        self.sums = torch.zeros(len(measures), device=device)
        self.images = 0
        self.started = time.perf_counter()

    def add(self, sums: Tensor, images: int) -> None:
        self.sums += sums
        self.images += images

    def leave_out(self, seconds: float) -> None:
        """Exclude time that was not spent on these images from the speed."""
        self.started += seconds

    def read(self) -> tuple[dict[str, float], float]:
        """Return the means and the images per second. This waits for the device."""
        means = (self.sums / max(1, self.images)).tolist()
        speed = self.images / (time.perf_counter() - self.started)
        return dict(zip(self.measures, means, strict=True)), speed

    def state_dict(self) -> dict[str, Any]:
        seconds = time.perf_counter() - self.started
        return {"sums": self.sums, "images": self.images, "seconds": seconds}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sums.copy_(state["sums"])
        self.images = int(state["images"])
        self.started = time.perf_counter() - float(state["seconds"])
