"""Evaluation of a model on a whole split."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from vit_train.engine.device import Precision
from vit_train.engine.distributed import ALONE, Processes
from vit_train.engine.metrics import Evaluation
from vit_train.engine.objective import Objective
from vit_train.engine.workers import ONE_WORKER, Workers


def evaluate(
    model: nn.Module,
    objective: Objective,
    batches: Iterable[tuple[Tensor, Tensor]],
    precision: Precision,
    workers: Workers = ONE_WORKER,
    processes: Processes = ALONE,
) -> Evaluation:
    """Evaluate the model on every batch; nothing is copied from the device until the end.

    With several processes, `batches` is this process's share of the images, and every process gets
    the result for the whole split.
    """

    @torch.no_grad()
    def sample_outputs(images: Tensor, targets: Tensor) -> Tensor:
        with precision.autocast():
            # Not model(images), which would compile the model again for each new batch size.
            return objective.sample_outputs(model.forward, images, targets)

    was_training = model.training
    model.eval()
    outputs = [part for batch in batches for part in workers.map(sample_outputs, *batch)]
    model.train(was_training)
    return objective.evaluation(processes.gather(torch.cat(outputs).cpu()).double())
