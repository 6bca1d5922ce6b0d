"""Common base of the tasks that predict pixels, whose targets are in the images themselves."""

from torch import Tensor

from vit_train.engine.metrics import Evaluation
from vit_train.engine.objective import Forward
from vit_train.model.config import ModelConfig, require_vit
from vit_train.model.patches import require_whole_patches
from vit_train.tasks.config import DecodeConfig
from vit_train.tasks.task import Task


class PixelTask(Task):
    """Base of the tasks that predict pixels.

    Its `sample_outputs` are the mean squared error of each image's predicted values, (B,1).
    """

    measures = ("loss",)

    def __init__(
        self,
        config: DecodeConfig,
        model: ModelConfig,
        image_shape: tuple[int, int, int],
        num_classes: int,
    ) -> None:
        self.config, self.vit = config, require_vit(model, f"task={config.name}")
        require_whole_patches(self.vit.patch_size, image_shape[1])
        self.image_shape = image_shape

    def step_sums(self, model: Forward, images: Tensor, targets: Tensor) -> Tensor:
        return self.sample_outputs(model, images, targets).sum(0)

    def evaluation(self, sample_outputs: Tensor) -> Evaluation:
        return Evaluation(count=len(sample_outputs), loss=sample_outputs.mean().item())
