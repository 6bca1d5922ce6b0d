"""The state of a run, as data: everything that training changes."""

from dataclasses import dataclass

from torch import Tensor

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
