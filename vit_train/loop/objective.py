"""Interfaces of training objectives and training batches; evaluation of a model on a split."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from vit_train.loop.device import Precision
from vit_train.loop.distributed import ALONE, Processes
from vit_train.loop.metrics import Evaluation
from vit_train.loop.workers import ONE_WORKER, Workers

# In training, the model itself; in evaluation, its `forward`, which is never compiled.
Forward = Callable[..., Tensor]


class Objective(Protocol):
    """Interface of a training objective.

    Each objective defines what the targets in a batch (images, targets) are.
    """

    # The names of a training step's measures; the first is minimized.
    measures: ClassVar[tuple[str, ...]]
    # True if images count unequally; a step's loss is then the weighted mean.
    weighs: bool = False
    # The value of `evaluation` that selects the best epoch.
    best_by: str = "loss"

    def step_sums(self, model: Forward, images: Tensor, targets: Tensor) -> Tensor:
        """Return each of `measures`, summed over the images of a batch: (M,).

        If the objective `weighs` images, the measures are weighted sums, and the sum of the weights
        of each measure is appended: (2M,).
        """

    def sample_outputs(self, model: Forward, images: Tensor, targets: Tensor) -> Tensor:
        """Return the values that `evaluation` needs for each image: (B,K) float32."""

    def evaluation(self, sample_outputs: Tensor) -> Evaluation:
        """Compute a split's results from the `sample_outputs` (N,K), float64, of all its images."""


Batch = tuple[Tensor, Tensor]


class TrainLoader(Protocol):
    """Interface of the training batches; `vit_train.data.batches.DrawnBatches` implements it."""

    # The number of images per step, over all processes.
    batch_size: int

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""

    def draws(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """Yield the random draws, on the CPU, for an epoch's batches from batch `first` on."""

    def batch(self, *draws: Tensor) -> Batch:
        """Make a batch from its draws, which are on the device."""

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, from batch `first` on."""


def without_gradients(
    function: Callable[..., Tensor], precision: Precision
) -> Callable[..., Tensor]:
    """Return a function that computes `function` without gradients and in `precision`."""

    @torch.no_grad()
    def compute(*batch: Tensor) -> Tensor:
        with precision.autocast():
            return function(*batch)

    return compute


def outputs_of(
    model: nn.Module, objective: Objective, precision: Precision
) -> Callable[..., Tensor]:
    """Return a function that maps a batch to its `sample_outputs`, without gradients."""
    # Not model(images): that would compile the model again for each new batch size.
    return without_gradients(partial(objective.sample_outputs, model.forward), precision)


def outputs(
    model: nn.Module,
    compute: Callable[..., Tensor],
    batches: Iterable[tuple[Tensor, ...]],
    workers: Workers,
) -> Tensor:
    """Return `compute`(*batch) of all batches as one tensor, with the model in eval mode.

    The outputs stay on the device until the last batch; the result is on the CPU.
    """
    was_training = model.training
    model.eval()
    found = [part for batch in batches for part in workers.map(compute, *batch)]
    model.train(was_training)
    return torch.cat(found).cpu()


def evaluate(
    model: nn.Module,
    objective: Objective,
    batches: Iterable[Batch],
    precision: Precision,
    workers: Workers = ONE_WORKER,
    processes: Processes = ALONE,
    sample_outputs: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Evaluation:
    """Evaluate the model on all batches.

    With several processes, `batches` holds this process's share of the images, and every process
    gets the result for the whole split. `sample_outputs` computes a batch; None means the function
    that `outputs_of` returns.
    """
    compute = sample_outputs or outputs_of(model, objective, precision)
    found = outputs(model, compute, batches, workers)
    return objective.evaluation(processes.gather(found).double())
