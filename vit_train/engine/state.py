"""The state of a run, as data: everything that training changes."""

from dataclasses import dataclass

from torch import Tensor

State = dict[str, Tensor]


@dataclass(frozen=True)
class AveragesState:
    """The sums (M,) of the measures over a number of images, and the seconds that they took."""

    sums: Tensor
    images: int
    seconds: float


@dataclass(frozen=True)
class Start:
    """The start of a run's counters: zero or, if it extends another run, the end of that one."""

    epoch: int = 0
    step: int = 0
    # The learning rate from which the warm-up leads to the peak.
    lr: float = 0.0


@dataclass(frozen=True)
class Best:
    """The best epoch so far in validation, counted from 1."""

    epoch: int
    score: float
    values: dict[str, float]


@dataclass(frozen=True)
class RandomState:
    """The states of the global random generators, which dropout on a GPU draws from."""

    torch: Tensor
    cuda: list[Tensor]


@dataclass(frozen=True, kw_only=True)
class TrainerState:
    """Everything that training changes."""

    model: State
    # The moving average of the weights, if there is one.
    ema: State | None
    # Of each optimizer, the moments of each of its parameters, by name.
    optimizers: list[list[State]]
    # Of the gradient scaler, empty unless the run trains in fp16.
    scaler: dict[str, float]
    random: RandomState
    epoch_averages: AveragesState
    log_averages: AveragesState
    # The best epoch of this run, if it is validated.
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
    # Time spent training, without pauses between stopping and resuming.
    seconds: float
