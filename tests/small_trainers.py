"""Trainers of small models on batches that a test gives them."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vit_train.config.model import ModelConfig
from vit_train.config.run import TrainConfig
from vit_train.config.tasks import ClassifyConfig
from vit_train.config.training import AdamWConfig, LoopConfig
from vit_train.loop.device import Precision
from vit_train.loop.objective import Objective
from vit_train.loop.trainer import Callback, Trainer
from vit_train.run.train import train_epochs
from vit_train.tasks.classify import Classify

FP32 = Precision("fp32", torch.device("cpu"))
# Of five values, into three classes.
CLASSIFY = Classify(ClassifyConfig(), ModelConfig(), (1, 1, 5), 3)


class GivenBatches:
    """Training batches, given for each epoch; the last ones are those of all later epochs."""

    def __init__(self, *epochs: Sequence[tuple[Tensor, Tensor]]) -> None:
        self.epochs, self.batch_size = epochs, len(epochs[0][0][0])

    def __len__(self) -> int:
        return len(self.epochs[0])

    def draws(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(self.epochs[min(epoch, len(self.epochs) - 1)][first:])

    def batch(self, *draws: Tensor) -> tuple[Tensor, ...]:
        return draws

    epoch = draws


def batches_of(x: Tensor, y: Tensor, size: int = 8) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(size), y.split(size), strict=True))


def make_trainer(
    model: nn.Module,
    loader: GivenBatches,
    objective: Objective = CLASSIFY,
    callbacks: Sequence[Callback] = (),
    optim: AdamWConfig | None = None,
    seed: int = 0,
    **loop: object,
) -> Trainer:
    """Return a trainer in fp32 on this CPU."""
    train = LoopConfig(batch_size=loader.batch_size, **loop)
    config = TrainConfig(train=train, optim=optim or AdamWConfig(), seed=seed)
    return Trainer(model, objective, loader, config, FP32, callbacks)


def fit(trainer: Trainer, validated: bool = False) -> Trainer:
    """Train to the end, validated on the batches of the first epoch if asked for."""
    loader: Any = trainer.train_loader
    with trainer.workers:
        train_epochs(trainer, loader.epochs[0] if validated else None)
    return trainer
