"""The state of a run, as data: everything that training changes."""

import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

State = dict[str, Tensor]


@dataclass(frozen=True)
class AveragesState:
    """The sums (M,) of M measures over `images` images, and the training time in `seconds`."""

    sums: Tensor
    images: int
    seconds: float


@dataclass(frozen=True)
class Start:
    """The values of epoch, step and learning rate with which a run starts.

    The values are 0 or, if the run extends another run, the last values of that other run.
    """

    epoch: int = 0
    step: int = 0
    # The learning rate at which the warm-up begins.
    lr: float = 0.0


@dataclass(frozen=True)
class Best:
    """The epoch with the best validation result so far; epochs count from 1."""

    epoch: int
    score: float
    values: dict[str, float]


@dataclass(frozen=True)
class RandomState:
    """The states of PyTorch's global random generators.

    Dropout uses these generators on a GPU and in compiled code.
    """

    torch: Tensor
    cuda: list[Tensor]


@dataclass(frozen=True, kw_only=True)
class TrainerState:
    """The state of a trainer: everything that training changes."""

    model: State
    # The moving average of the weights, if the run keeps one.
    ema: State | None
    # For each optimizer, the moments of each of its parameters, by name.
    optimizers: list[list[State]]
    # The state of the gradient scaler; empty unless the run trains in fp16.
    scaler: dict[str, int | float]
    random: RandomState
    epoch_averages: AveragesState
    log_averages: AveragesState
    # This run's best epoch, if it has validation images.
    best: Best | None
    start: Start
    step: int
    epoch: int
    # Batches done in the current epoch.
    batch: int
    images_seen: int
    # Steps skipped because of NaN or infinity.
    skipped: int
    # The learning rate of the last step.
    lr: float
    # Seconds of training, without pauses between stopping and resuming.
    seconds: float


class Averages:
    """Means of measures over training images, and the training speed.

    The sums stay on the device, so that the loop waits for the device only to log. The tensors are
    never replaced, so that a CUDA graph can add to them.
    """

    def __init__(self, measures: Sequence[str], device: torch.device) -> None:
        self.measures = measures
        self.sums = torch.zeros(len(measures), device=device)
        self.images = torch.zeros((), dtype=torch.long, device=device)
        self.started = time.perf_counter()

    def add(self, sums: Tensor, images: Tensor) -> None:
        self.sums += sums
        self.images += images

    def take(self) -> tuple[dict[str, float], float]:
        """Return each measure's mean, by name, and the images per second; then begin anew.

        Wait for the device.
        """
        images = int(self.images)
        means = (self.sums / images).tolist()  # NaN if all steps were left out
        self.sums.zero_()
        self.images.zero_()
        began = self.started
        self.started = time.perf_counter()
        return dict(zip(self.measures, means, strict=True)), images / (self.started - began)

    def state(self) -> AveragesState:
        return AveragesState(self.sums, int(self.images), time.perf_counter() - self.started)

    def restore(self, state: AveragesState) -> None:
        self.sums.copy_(state.sums)
        self.images.fill_(state.images)
        self.started = time.perf_counter() - state.seconds


class WeightAverage:
    """An exponential moving average of a model's weights (Polyak averaging).

    In the first steps the decay is lower, so that the random initialization is soon forgotten.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay
        self.averages: list[Tensor] = list(self.model.parameters())
        self.weights: list[Tensor] = list(model.parameters())
        # Such as BatchNorm's statistics, which are already averages.
        self.buffers = list(zip(self.model.buffers(), model.buffers(), strict=True))

    def rate(self, step: int) -> float:
        """Return the `rate` for `update` after a step: the share of the current weights.

        Steps count from 1.
        """
        return 1 - min(self.decay, (1 + step) / (10 + step))

    @torch.no_grad()
    def update(self, rate: Tensor) -> None:
        """Replace each average a with a + rate · (w − a), where w is the model's weight.

        `rate` is a scalar tensor. Buffers are copied.
        """
        moves = torch._foreach_sub(self.weights, self.averages)
        # In the averages' own type: otherwise each would need a launch of its own.
        torch._foreach_mul_(moves, rate.to(self.averages[0].dtype))
        torch._foreach_add_(self.averages, moves)
        for average, value in self.buffers:
            average.copy_(value)
