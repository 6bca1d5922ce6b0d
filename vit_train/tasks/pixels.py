"""Tasks that predict pixels: masked autoencoding and autoregression."""

import copy
import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from vit_train.config.fields import ImageShape
from vit_train.config.model import ModelConfig, require_vit
from vit_train.config.tasks import AutoregressConfig, DecodeConfig, ReconstructConfig
from vit_train.data.batches import Batch, DrawnBatches, Draws, EvalBatches, to_device
from vit_train.loop.metrics import Evaluation
from vit_train.loop.objective import Forward
from vit_train.model.autoencoder import Autoregressor, MaskedAutoencoder
from vit_train.model.patches import (
    grid_of,
    patchify,
    require_whole_patches,
    show_only,
    unpatchify,
)
from vit_train.tasks import Task


class PixelTask(Task):
    """Base of the tasks that predict pixels.

    `sample_outputs` returns each image's mean squared error over the predicted pixels: (B,1).
    """

    measures = ("loss",)

    def __init__(
        self,
        config: DecodeConfig,
        model: ModelConfig,
        image_shape: ImageShape,
        num_classes: int,
    ) -> None:
        self.config = config
        self.vit = require_vit(model, f"task={config.name}")
        require_whole_patches(self.vit.patch_size, image_shape[1:])
        self.image_shape = image_shape

    def step_sums(self, model: Forward, images: Tensor, targets: Tensor) -> Tensor:
        return self.sample_outputs(model, images, targets).sum(0)

    def evaluation(self, sample_outputs: Tensor) -> Evaluation:
        return Evaluation(count=len(sample_outputs), loss=sample_outputs.mean().item())


class Reconstruct(PixelTask):
    """Prediction of hidden patches; the loss is the mean squared error over their pixels.

    The targets are orders of the patches (B,N), visible ones first. Raises ValueError if
    `mask_ratio` leaves no patch hidden or no patch visible.
    """

    columns = ("original", "masked", "reconstruction")

    def __init__(
        self,
        config: ReconstructConfig,
        model: ModelConfig,
        image_shape: ImageShape,
        num_classes: int,
    ) -> None:
        super().__init__(config, model, image_shape, num_classes)
        self.normalize_target = config.normalize_target
        self.num_patches = math.prod(grid_of(image_shape[1:], self.vit.patch_size))
        self.num_visible = self.num_patches - round(self.num_patches * config.mask_ratio)
        if not 0 < self.num_visible < self.num_patches:
            raise ValueError(
                f"task.mask_ratio={config.mask_ratio} leaves {self.num_visible} of "
                f"{self.num_patches} patches visible: at least one must be visible and one hidden"
            )

    def build_model(self) -> nn.Module:
        return MaskedAutoencoder(self.vit, self.config.decoder_depth, self.image_shape)

    def example_inputs(self) -> tuple[Tensor, ...]:
        return *super().example_inputs(), torch.arange(self.num_visible).unsqueeze(0)

    def train_loader(self, batches: DrawnBatches) -> "MaskedTrainBatches":
        return MaskedTrainBatches(batches, self.num_patches)

    def eval_loader(self, batches: EvalBatches) -> EvalBatches:
        """Return batches with orders as targets; each image always has the same order."""
        orders = random_orders(np.random.default_rng(0), batches.total, self.num_patches)
        masked = copy.copy(batches)
        masked.labels = to_device(orders[batches.share], batches.labels.device)
        return masked

    def sample_outputs(self, model: Forward, images: Tensor, targets: Tensor) -> Tensor:
        """Return each image's mean squared error over the pixels of its hidden patches: (B,1)."""
        truth = patchify(images, self.vit.patch_size)  # (B,N,C·P²)
        if self.normalize_target:
            truth = (truth - truth.mean(2, keepdim=True)) / deviation(truth)
        error = (model(images, targets[:, : self.num_visible]).float() - truth).square().mean(2)
        return error.gather(1, targets[:, self.num_visible :]).mean(1, keepdim=True)

    def pictures(self, model: nn.Module, images: Tensor, targets: Tensor) -> list[Tensor]:
        """Return the images, the masked images, and the masked images filled with predictions.

        With `normalize_target`, each predicted patch gets the true patch's mean and standard
        deviation.
        """
        visible = targets[:, : self.num_visible]
        truth = patchify(images, self.vit.patch_size)
        predicted = model.forward(images, visible).float()
        if self.normalize_target:
            predicted = predicted * deviation(truth) + truth.mean(2, keepdim=True)
        is_visible = torch.zeros_like(targets, dtype=torch.bool).scatter(1, visible, True)
        filled = truth.where(is_visible.unsqueeze(2), predicted)
        return [
            images,
            show_only(images, visible, self.vit.patch_size),
            unpatchify(filled, self.vit.patch_size, self.image_shape[1:]),
        ]


def deviation(patches: Tensor) -> Tensor:
    """Return the standard deviation of each patch's values: (B,N,D) → (B,N,1), never 0."""
    return (patches.var(2, keepdim=True) + 1e-6).sqrt()


def random_orders(rng: np.random.Generator, count: int, patches: int) -> Tensor:
    """Draw a random order of all patches for each of `count` images: (count, patches)."""
    return torch.from_numpy(rng.random((count, patches)).argsort(axis=1))


# Part of the seed that makes these draws independent of the same batch's augmentation.
MASKING = 1


class MaskedTrainBatches(DrawnBatches):
    """Training batches whose targets are random orders of the patches (B,N), visible ones first.

    The orders in batch b of epoch e depend only on (seed, e, b).
    """

    def __init__(self, batches: DrawnBatches, patches: int) -> None:
        super().__init__(batches.device, batches.batch_size, batches.seed, batches.share)
        self.source = batches
        self.num_patches = patches

    def __len__(self) -> int:
        return len(self.source)

    def draws(self, epoch: int, first: int = 0) -> Iterator[Draws]:
        for number, draws in enumerate(self.source.draws(epoch, first), first):
            orders = random_orders(
                self.generator(epoch, number, MASKING), self.batch_size, self.num_patches
            )
            yield *draws, orders[self.share]

    def batch(self, *draws: Tensor) -> Batch:
        *images, orders = draws
        return self.source.batch(*images)[0], orders


class Autoregress(PixelTask):
    """Predicts each patch below the given rows from all patches before it.

    The loss is the mean squared error over the pixels of the predicted patches.
    """

    columns = ("original", "given", "completion", "one step ahead")

    config: AutoregressConfig

    def build_model(self) -> nn.Module:
        config = self.config
        return Autoregressor(self.vit, config.decoder_depth, self.image_shape, config.given_rows)

    def sample_outputs(self, model: Forward, images: Tensor, targets: Tensor) -> Tensor:
        """Return each image's mean squared error over the pixels of predicted patches: (B,1)."""
        predicted = model(images).float()  # (B,M,C·P²), the last M patches
        truth = patchify(images, self.vit.patch_size)[:, -predicted.shape[1] :]
        return (predicted - truth).square().mean(dim=(1, 2)).unsqueeze(1)

    def pictures(self, model: nn.Module, images: Tensor, targets: Tensor) -> list[Tensor]:
        """Return the images, the given rows, and two predictions of the other rows.

        In "completion", each patch is predicted from the patches predicted before it; in "one step
        ahead", from the true patches before it.
        """
        assert isinstance(model, Autoregressor)
        size = self.vit.patch_size
        given = patchify(images, size)[:, : model.num_given]
        predicted = model.forward(images).float()
        shown, ahead = (
            unpatchify(torch.cat((given, rest), dim=1), size, self.image_shape[1:])
            for rest in (torch.zeros_like(predicted), predicted)
        )
        return [images, shown, model.generate(images), ahead]
