"""Masked autoencoding (He et al. 2022, arXiv:2111.06377).

Targets are the numbers of an image's patches in a random order, (B,N): those that come first are
visible, the others hidden.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from vit_train.data.batches import Batch, EvalBatches, TrainBatches
from vit_train.engine.objective import Forward
from vit_train.model.config import ModelConfig
from vit_train.model.mae import MaskedAutoencoder, patchify, unpatchify
from vit_train.tasks.config import ReconstructConfig
from vit_train.tasks.pixels import PixelTask

# Sets these draws apart from the augmentation's of the same batch.
HIDING = 1


class Reconstruct(PixelTask):
    """The mean squared error of the hidden patches' pixels."""

    columns = ("original", "masked", "reconstruction")

    def __init__(
        self,
        config: ReconstructConfig,
        model: ModelConfig,
        image_shape: tuple[int, int, int],
        num_classes: int,
    ) -> None:
        super().__init__(config, model, image_shape, num_classes)
        self.normalise_target = config.normalise_target
        self.patches = (image_shape[1] // self.vit.patch_size) ** 2
        self.visible = self.patches - round(self.patches * config.mask_ratio)
        if not 0 < self.visible < self.patches:
            raise ValueError(
                f"task.mask_ratio={config.mask_ratio} leaves {self.visible} of {self.patches} "
                "patches visible: some must be, and some not"
            )

    def build_model(self) -> nn.Module:
        channels, size, _ = self.image_shape
        return MaskedAutoencoder(self.vit, self.decoder_depth, size, channels)

    def train_loader(self, batches: TrainBatches) -> "HidingTrain":
        return HidingTrain(batches, self.patches)

    def eval_loader(self, batches: EvalBatches) -> "HidingEval":
        return HidingEval(batches, self.patches)

    def sample_outputs(self, model: Forward, images: Tensor, targets: Tensor) -> Tensor:
        """The mean over an image's hidden values: (B,1)."""
        truth = patchify(images, self.vit.patch_size)  # (B,N,C·P²)
        if self.normalise_target:
            truth = (truth - truth.mean(2, keepdim=True)) / deviation(truth)
        error = (model(images, targets[:, : self.visible]).float() - truth).square().mean(2)
        return error.gather(1, targets[:, self.visible :]).mean(1, keepdim=True)

    def pictures(self, model: nn.Module, images: Tensor, targets: Tensor) -> list[Tensor]:
        """Normalised predictions borrow the true patch's mean and deviation."""
        visible, hidden = targets.split((self.visible, self.patches - self.visible), dim=1)
        truth = patchify(images, self.vit.patch_size)
        predicted = model.forward(images, visible).float()
        if self.normalise_target:
            predicted = predicted * deviation(truth) + truth.mean(2, keepdim=True)
        is_hidden = torch.zeros_like(targets, dtype=torch.bool).scatter(1, hidden, True)
        patches = (
            truth.masked_fill(is_hidden.unsqueeze(2), 0),
            predicted.where(is_hidden.unsqueeze(2), truth),
        )
        return [images, *(unpatchify(each, self.vit.patch_size) for each in patches)]


def deviation(patches: Tensor) -> Tensor:
    """Of each patch's values, (B,N,1); never 0."""
    return (patches.var(2, keepdim=True) + 1e-6).sqrt()


def drawn_orders(rng: np.random.Generator, count: int, patches: int) -> Tensor:
    """For each of `count` images all patches in an order of its own: (count, patches)."""
    return torch.from_numpy(rng.random((count, patches)).argsort(axis=1))


class HidingTrain:
    """Batch b of epoch e hides other patches each time, as a pure function of (seed, e, b)."""

    def __init__(self, batches: TrainBatches, patches: int) -> None:
        self.source, self.patches = batches, patches

    def __len__(self) -> int:
        return len(self.source)

    @property
    def batch_size(self) -> int:
        return self.source.batch_size

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        source = self.source
        for number, (images, _) in enumerate(source.epoch(epoch, first), first):
            rng = source.generator(epoch, number, HIDING)
            orders = drawn_orders(rng, source.batch_size, self.patches)[source.share]
            yield images, orders.to(images.device)


class HidingEval:
    """An image's hidden patches are the same every time, whatever the batches."""

    def __init__(self, batches: EvalBatches, patches: int) -> None:
        self.source, self.patches = batches, patches

    def __iter__(self) -> Iterator[Batch]:
        source = self.source
        orders = drawn_orders(np.random.default_rng(0), source.total, self.patches)[source.share]
        for (images, _), order in zip(source, orders.split(source.batch_size), strict=True):
            yield images, order.to(images.device)
