"""The interface between the training loop and a training objective."""

from collections.abc import Callable
from typing import ClassVar, Protocol

from torch import Tensor

from vit_train.engine.metrics import Evaluation

# In training the model itself; in evaluation its `forward`, which is never compiled.
Forward = Callable[..., Tensor]


class Objective(Protocol):
    """A training objective. A batch is (images, targets); each objective defines its targets."""

    # The names of what is measured in a training step; the first is minimized.
    measures: ClassVar[tuple[str, ...]]
    # Whether images have weights, so that a step's loss is the mean over weights.
    weighs: bool = False

    def step_sums(self, model: Forward, images: Tensor, targets: Tensor) -> Tensor:
        """Return each of `measures`, summed over the images of a batch: (M,).

        If the objective `weighs`, its loss is multiplied by weights, and their sum follows: (M+1,).
        """
        ...

    def sample_outputs(self, model: Forward, images: Tensor, targets: Tensor) -> Tensor:
        """Return what `evaluation` needs to know about each image: (B,K) float32."""
        ...

    def evaluation(self, sample_outputs: Tensor) -> Evaluation:
        """Return the results of a whole split from its sample outputs, (N,K) float64."""
        ...
