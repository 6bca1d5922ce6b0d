"""A model over a whole split."""

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
    """Run the model over every batch; nothing is copied from the device until the end.

    Of several processes each has its share of the images; all get the result of the whole.
    """

    @torch.no_grad()
    def sample_outputs(images: Tensor, targets: Tensor) -> Tensor:
        with precision.autocast():
            # Not model(images): compiled code would be compiled again for each new batch size.
            return objective.sample_outputs(model.forward, images, targets)

    was_training = model.training
    model.eval()
    every = [piece for batch in batches for piece in workers.map(sample_outputs, *batch)]
    model.train(was_training)
    return objective.evaluation(processes.gather(torch.cat(every).cpu()).double())
