"""The training loop. It tells observers what happened; what they do with it is theirs."""

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit_train.engine.config import LoopConfig, OptimConfig
from vit_train.engine.device import Precision
from vit_train.engine.lanes import make_lanes
from vit_train.engine.metrics import Evaluation, evaluate
from vit_train.engine.optim import WeightAverage, learning_rate, make_optimizer
from vit_train.noise import noise_from

Batch = tuple[Tensor, Tensor]


class NonFiniteLoss(ArithmeticError):
    """The loss became NaN or infinite: the weights are lost, the last checkpoint is not."""


class Source(Protocol):
    """What the loop needs of its training data: `vit_train.data.batches.TrainBatches`."""

    def __len__(self) -> int: ...
    def epoch(self, epoch: int) -> Iterator[Batch]: ...


@dataclass(frozen=True)
class TrainLog:
    """Averages over the images since the previous log (or, at an epoch's end, the epoch)."""

    epoch: int
    step: int
    images_seen: int
    loss: float
    acc: float
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


def correct_answers(logits: Tensor, targets: Tensor) -> Tensor:
    """How many labels (B,) are predicted; of mixed targets (B,K), how much of them is."""
    predicted = logits.argmax(1)
    if targets.ndim == 1:
        return (predicted == targets).sum()
    return targets.gather(1, predicted.unsqueeze(1)).sum()


class Averages:
    """Sums that stay on the device, so that the loop never waits for it between two logs."""

    def __init__(self, device: torch.device) -> None:
        self.sums = torch.zeros(2, device=device)
        self.images = 0
        self.started = time.perf_counter()

    def add(self, loss: Tensor, correct: Tensor, images: int) -> None:
        self.sums += torch.stack((loss.detach() * images, correct.float()))
        self.images += images

    def read(self) -> tuple[float, float, float]:
        """Mean loss, accuracy and images/s. This waits for the device."""
        loss, correct = (self.sums / self.images).tolist()
        return loss, correct, self.images / (time.perf_counter() - self.started)


class Trainer:
    """Trains a classifier on batches. All that a resumed run needs is in `state_dict`."""

    def __init__(
        self,
        model: nn.Module,
        train: Source,
        val: Iterable[Batch] | None,
        optim: OptimConfig,
        loop: LoopConfig,
        precision: Precision,
        observers: Sequence[Observer] = (),
        seed: int = 0,
        compiled: bool = False,
    ) -> None:
        self.model, self.train, self.val = model, train, val
        self.optim, self.loop, self.precision = optim, loop, precision
        self.observers = observers
        self.seed = seed
        self.optimizer = make_optimizer(model, optim)
        self.scaler = precision.scaler()
        self.ema = WeightAverage(model, loop.ema_decay) if loop.ema_decay else None
        self.lanes = make_lanes(
            model, precision.device, loop.batch_size, loop.micro_batch, compiled
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
        return evaluate(model, batches, self.precision, self.lanes)

    def run_epoch(self) -> TrainLog | None:
        """One pass over the data; None if a stop was asked for on the way."""
        whole, recent = self._averages(), self._averages()
        for images, labels in self.train.epoch(self.epoch):
            if self.stop_requested:
                return None
            loss, correct = self.take_step(images, labels)
            whole.add(loss, correct, len(labels))
            recent.add(loss, correct, len(labels))
            for observer in self.observers:
                observer.on_step(self)
            if self.step % self.loop.log_every == 0:
                log = self._log(recent)
                for observer in self.observers:
                    observer.on_log(self, log)
                recent = self._averages()
        return self._log(whole)

    def _averages(self) -> Averages:
        return Averages(self.precision.device)

    def take_step(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """One optimizer step; returns the mean loss and the number of correct answers."""
        lr = learning_rate(self.step, self.optim, len(self.train), self.loop.epochs)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        loss, correct = self.compute_gradients(images, targets)
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
        return loss, correct

    def compute_gradients(self, images: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Add up the gradient of the batch's mean loss; returns the loss and correct answers."""
        count = len(images)

        def compute(
            part: Tensor, truth: Tensor, place: Tensor
        ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
            with self.noise(place), self.precision.autocast():
                logits = self.model(part)
                smoothing = self.loop.label_smoothing
                loss = F.cross_entropy(logits, truth, label_smoothing=smoothing, reduction="sum")
            loss = loss / count
            gradients = torch.autograd.grad(self.scaler.scale(loss), self.parameters)
            return loss.detach(), correct_answers(logits.detach(), truth), gradients

        results = torch.zeros(2, device=images.device)
        for loss, correct, additions in self.lanes.over(
            compute, images, targets, torch.arange(count)
        ):
            results[0] += loss
            results[1] += correct
            torch._foreach_add_(self.gradients, additions)
        return results[0], results[1]

    def noise(self, place: Tensor) -> contextlib.AbstractContextManager[None]:
        """On a CPU a piece's dropout depends on the seed, the step and its place in the batch."""
        if self.precision.device.type != "cpu":
            return contextlib.nullcontext()
        return noise_from(self.seed, self.step, int(place[0]))

    def _log(self, averages: Averages) -> TrainLog:
        loss, acc, speed = averages.read()
        if not loss < float("inf"):
            raise NonFiniteLoss(
                f"the loss became {loss} by step {self.step} (epoch {self.epoch + 1}): try a lower "
                "optim.lr, a longer optim.warmup_epochs, a smaller optim.clip_norm"
            )
        lr = self.optimizer.param_groups[0]["lr"]
        return TrainLog(self.epoch + 1, self.step, self.images_seen, loss, acc, lr, speed)
