"""What the loop asks of whatever is being learned."""

from collections.abc import Callable
from typing import ClassVar, Protocol

from torch import Tensor

from vit_train.engine.metrics import Evaluation

# The model in training; its forward, which is never compiled, in evaluation.
Forward = Callable[..., Tensor]


class Objective(Protocol):
    """A batch is (images, targets); what targets are is the objective's own affair."""

    # What is measured of a training step; the first is minimised.
    measures: ClassVar[tuple[str, ...]]

    def step_sums(self, model: Forward, images: Tensor, targets: Tensor) -> Tensor:
        """Each of `measures`, summed over the images of a batch: (M,)."""
        ...

    def sample_outputs(self, model: Forward, images: Tensor, targets: Tensor) -> Tensor:
        """All that `evaluation` needs to know of each image: (B,K) float32."""
        ...

    def evaluation(self, sample_outputs: Tensor) -> Evaluation:
        """Of a whole split, (N,K) float64."""
        ...
