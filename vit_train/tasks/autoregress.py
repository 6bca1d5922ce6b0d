"""Patch after patch: each is predicted from the given first rows and the patches before it."""

from torch import Tensor, nn

from vit_train.engine.metrics import Evaluation
from vit_train.engine.objective import Forward
from vit_train.model.autoencoder import Autoregressor, cut_patches, join_patches
from vit_train.model.config import ModelConfig, require_vit
from vit_train.tasks.config import AutoregressConfig
from vit_train.tasks.task import Task


class Autoregress(Task):
    """The mean squared error of the patches that are not given. The targets are in the images."""

    measures = ("loss",)
    columns = ("original", "given", "completion", "one step ahead")

    def __init__(
        self,
        config: AutoregressConfig,
        model: ModelConfig,
        image_shape: tuple[int, int, int],
        num_classes: int,
    ) -> None:
        self.config, self.vit, self.image_shape = config, require_vit(model), image_shape

    def build_model(self) -> nn.Module:
        channels, size, _ = self.image_shape
        config = self.config
        return Autoregressor(self.vit, config.decoder_depth, size, channels, config.given_rows)

    def sums(self, model: Forward, images: Tensor, targets: Tensor) -> Tensor:
        return self.outcomes(model, images, targets).sum(0)

    def outcomes(self, model: Forward, images: Tensor, targets: Tensor) -> Tensor:
        """The mean over an image's predicted values: (B,1)."""
        predicted = model(images).float()  # (B,M,C·P²), the last M patches
        truth = cut_patches(images, self.vit.patch_size)[:, -predicted.shape[1] :]
        return (predicted - truth).square().mean(dim=(1, 2)).unsqueeze(1)

    def evaluation(self, outcomes: Tensor) -> Evaluation:
        return Evaluation(count=len(outcomes), loss=outcomes.mean().item())

    def pictures(self, model: nn.Module, images: Tensor, targets: Tensor) -> list[Tensor]:
        """The completion goes on from its own patches, one step ahead from the true ones."""
        assert isinstance(model, Autoregressor)
        patches = cut_patches(images, self.vit.patch_size)
        given = patches.clone()
        given[:, model.given :] = 0
        ahead = patches.clone()
        ahead[:, model.given :] = model.forward(images).float()
        size = self.vit.patch_size
        completion = model.generate(images)
        return [images, join_patches(given, size), completion, join_patches(ahead, size)]
