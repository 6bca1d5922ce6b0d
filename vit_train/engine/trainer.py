"""The training loop. It tells observers what happened; what they do with it is theirs."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vit_train.engine.config import LoopConfig, OptimConfig
from vit_train.engine.device import Precision
from vit_train.engine.evaluating import evaluate
from vit_train.engine.lanes import make_lanes
from vit_train.engine.metrics import Evaluation
from vit_train.engine.objective import Objective
from vit_train.engine.optim import WeightAverage, learning_rate, make_optimizer
from vit_train.noise import noise_from

Batch = tuple[Tensor, Tensor]


class NonFiniteLoss(ArithmeticError):
    """The loss became NaN or infinite: the weights are lost, the last checkpoint is not."""


class Source(Protocol):
    """What the loop needs of its training data: `vit_train.data.batches.TrainBatches` is one."""

    def __len__(self) -> int: ...
    def epoch(self, epoch: int) -> Iterator[Batch]: ...


class RunConfig(Protocol):
    """What the loop needs to be told: `vit_train.config.TrainConfig` says it."""

    @property
    def optim(self) -> OptimConfig: ...
    @property
    def train(self) -> LoopConfig: ...
    @property
    def seed(self) -> int: ...
    @property
    def compile(self) -> bool: ...


@dataclass(frozen=True)
class TrainLog:
    """Averages over the images since the previous log (or, at an epoch's end, the epoch)."""

    epoch: int
    step: int
    images_seen: int
    # By the names of the objective's measures.
    values: dict[str, float]
    lr: float
    images_per_s: float


class Observer:
    """Hears what happens; every method may be left out."""

    def on_step(self, trainer: "Trainer") -> None:
        """After every optimizer step, without figures: reading them would wait for the device."""

    def on_log(self, trainer: "Trainer", log: TrainLog) -> None:
        """Every `log_every` steps."""

    def on_epoch(self, trainer: "Trainer", log: TrainLog, val: Evaluation | None) -> None:
        """After each epoch and its validation."""

    def on_stop(self, trainer: "Trainer") -> None:
        """Once, when a run was asked to stop before its end."""


class Averages:
    """Sums that stay on the device, so that the loop never waits for it between two logs."""

    def __init__(self, measures: Sequence[str], device: torch.device) -> None:
        self.measures = measures
        self.sums = torch.zeros(len(measures), device=device)
        self.images = 0
        self.started = time.perf_counter()

    def add(self, sums: Tensor, images: int) -> None:
        self.sums += sums
        self.images += images

    def read(self) -> tuple[dict[str, float], float]:
        """The means and images/s. This waits for the device."""
        means = (self.sums / self.images).tolist()
        speed = self.images / (time.perf_counter() - self.started)
        return dict(zip(self.measures, means, strict=True)), speed


class Trainer:
    """Trains a model towards an objective. All that a resumed run needs is in `state_dict`."""

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        train: Source,
        val: Iterable[Batch] | None,
        config: RunConfig,
        precision: Precision,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.model, self.objective, self.train, self.val = model, objective, train, val
        self.optim, self.loop, self.seed = config.optim, config.train, config.seed
        self.precision, self.observers = precision, observers
        self.optimizer = make_optimizer(model, self.optim)
        self.scaler = precision.scaler()
        decay = self.loop.ema_decay
        self.ema = WeightAverage(model, decay) if decay else None
        self.lanes = make_lanes(
            model, precision.device, self.loop.batch_size, self.loop.micro_batch, config.compile
        )
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.gradients = [torch.zeros_like(parameter) for parameter in self.parameters]
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        self.step = self.epoch = self.images_seen = 0
        self.stop_requested = False

    @property
    def finished(self) -> bool:
        return self.epoch == self.loop.epochs

    @property
    def eval_model(self) -> nn.Module:
        """The averaged weights where there are any."""
        return self.ema.model if self.ema else self.model

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes while training."""
        return {
            "model": self.model.state_dict(),
            "ema": self.ema.model.state_dict() if self.ema else None,
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "step": self.step,
            "epoch": self.epoch,
            "images_seen": self.images_seen,
        }

    def fit(self) -> None:
        """Train until the last epoch or until `stop_requested`; NonFiniteLoss if it diverges."""
        self.model.train()
        with self.lanes:
            while not self.finished:
                log = self.run_epoch()
                if log is None:
                    for observer in self.observers:
                        observer.on_stop(self)
                    return
                self.epoch += 1
                val = None if self.val is None else self.evaluate(self.eval_model, self.val)
                for observer in self.observers:
                    observer.on_epoch(self, log, val)

    def evaluate(self, model: nn.Module, batches: Iterable[Batch]) -> Evaluation:
        return evaluate(model, self.objective, batches, self.precision, self.lanes)

    def run_epoch(self) -> TrainLog | None:
        """One pass over the data; None if a stop was asked for on the way."""
        whole, recent = self._averages(), self._averages()
        for images, targets in self.train.epoch(self.epoch):
            if self.stop_requested:
                return None
            sums = self.take_step(images, targets)
            whole.add(sums, len(images))
            recent.add(sums, len(images))
            for observer in self.observers:
                observer.on_step(self)
            if self.step % self.loop.log_every == 0:
                log = self._log(recent)
                for observer in self.observers:
                    observer.on_log(self, log)
                recent = self._averages()
        return self._log(whole)

    def _averages(self) -> Averages:
        return Averages(self.objective.measures, self.precision.device)

    def take_step(self, images: Tensor, targets: Tensor) -> Tensor:
        """One optimizer step; returns the objective's sums."""
        lr = learning_rate(self.step, self.optim, len(self.train), self.loop.epochs)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        sums = self.compute_gradients(images, targets)
        if self.optim.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, self.optim.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=False)
        self.step += 1
        self.images_seen += len(images)
        if self.ema:
            self.ema.update(self.model, self.step)
        return sums

    def compute_gradients(self, images: Tensor, targets: Tensor) -> Tensor:
        """Add up the gradient of the batch's mean loss; returns the objective's sums."""
        count = len(images)

        def compute(
            part: Tensor, truth: Tensor, place: Tensor
        ) -> tuple[Tensor, tuple[Tensor, ...]]:
            with self.noise(place), self.precision.autocast():
                sums = self.objective.sums(self.model, part, truth)
            loss = self.scaler.scale(sums[0] / count)
            return sums.detach(), torch.autograd.grad(loss, self.parameters)

        totals = torch.zeros(len(self.objective.measures), device=images.device)
        for sums, additions in self.lanes.over(compute, images, targets, torch.arange(count)):
            totals += sums
            torch._foreach_add_(self.gradients, additions)
        return totals

    def noise(self, place: Tensor) -> contextlib.AbstractContextManager[None]:
        """On a CPU a piece's dropout depends on the seed, the step and its place in the batch."""
        if self.precision.device.type != "cpu":
            return contextlib.nullcontext()
        return noise_from(self.seed, self.step, int(place[0]))

    def _log(self, averages: Averages) -> TrainLog:
        values, speed = averages.read()
        loss = values[self.objective.measures[0]]
        if not loss < float("inf"):
            raise NonFiniteLoss(
                f"the loss became {loss} by step {self.step} (epoch {self.epoch + 1}): try a lower "
                "optim.lr, a longer optim.warmup_epochs, a smaller optim.clip_norm"
            )
        lr = self.optimizer.param_groups[0]["lr"]
        return TrainLog(self.epoch + 1, self.step, self.images_seen, values, lr, speed)
