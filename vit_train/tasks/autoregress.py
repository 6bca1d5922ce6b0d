"""Autoregression: each patch is predicted from the given first rows and the patches before it."""

from torch import Tensor, nn

from vit_train.engine.objective import Forward
from vit_train.model.mae import Autoregressor
from vit_train.model.patches import patchify, unpatchify
from vit_train.tasks.config import AutoregressConfig
from vit_train.tasks.pixel_task import PixelTask


class Autoregress(PixelTask):
    """Task with the mean squared error of the patches that are not given as its loss.

    The images themselves are the targets.
    """

    columns = ("original", "given", "completion", "one step ahead")

    config: AutoregressConfig

    def build_model(self) -> nn.Module:
        channels, size, _ = self.image_shape
        depth, rows = self.config.decoder_depth, self.config.given_rows
        return Autoregressor(self.vit, depth, size, channels, rows)

    def sample_outputs(self, model: Forward, images: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error of each image's predicted values: (B,1)."""
        predicted = model(images).float()  # (B,M,C·P²), the last M patches
        truth = patchify(images, self.vit.patch_size)[:, -predicted.shape[1] :]
        return (predicted - truth).square().mean(dim=(1, 2)).unsqueeze(1)

    def pictures(self, model: nn.Module, images: Tensor, targets: Tensor) -> list[Tensor]:
        """Return the original, its given rows, and two predictions of the rest.

        The completion predicts each patch from its own earlier predictions; one step ahead predicts
        it from the true earlier patches.
        """
        assert isinstance(model, Autoregressor)
        patches = patchify(images, self.vit.patch_size)
        given = patches.clone()
        given[:, model.given :] = 0
        ahead = patches.clone()
        ahead[:, model.given :] = model.forward(images).float()
        size = self.vit.patch_size
        completion = model.generate(images)
        return [images, unpatchify(given, size), completion, unpatchify(ahead, size)]
