"""The trainer, which takes optimizer steps, and the callbacks that a run notifies."""

import contextlib
import gc
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vit_train.base.rng import per_image_generators
from vit_train.config.fields import builder
from vit_train.config.training import LoopConfig, OptimConfig
from vit_train.loop.compile import (
    GraphedOutputs,
    GraphedStep,
    compile_batch,
    compile_model,
    compiles,
)
from vit_train.loop.device import Precision, trained_weights
from vit_train.loop.distributed import ALONE, Processes, joined_sums
from vit_train.loop.metrics import Evaluation
from vit_train.loop.objective import Batch, Objective, TrainLoader, evaluate, outputs_of
from vit_train.loop.optimizers import Optimizers, rate_scales
from vit_train.loop.schedule import FRESH, NonFiniteGuard, better, learning_rate
from vit_train.loop.state import Averages, Best, WeightAverage
from vit_train.loop.workers import make_workers

TIME_IS_UP = "because train.max_minutes has passed (counted from each start; null: no limit)"
# Minimum time between logs on a GPU: a log waits 3 to 5 ms for the GPU, as long as several steps.
LOG_SECONDS = 1.0


@dataclass(frozen=True)
class TrainLog:
    """Averages since the previous log or, at the end of an epoch, over the whole epoch."""

    epoch: int
    step: int
    images_seen: int
    # The mean of each of the objective's measures, by name.
    values: dict[str, float]
    lr: float
    images_per_s: float


class Callback:
    """Base class of callbacks. Every method is optional and does nothing by default."""

    def on_log(self, trainer: "Trainer", log: TrainLog) -> None:
        """Handle the averages since the previous log.

        Logs come every `log_every` steps of an epoch, but on a GPU at most once a second, and at
        the end of the epoch, before `on_epoch`.
        """

    def on_step(self, trainer: "Trainer") -> None:
        """Handle the end of every optimizer step.

        No averages are passed, because reading them would mean waiting for the device.
        """

    def on_epoch(self, trainer: "Trainer", log: TrainLog, val: Evaluation | None) -> None:
        """Handle the end of each epoch, after its validation; `val` is None without validation."""

    def on_stop(self, trainer: "Trainer") -> None:
        """Handle the end of a run that `Trainer.stop` ends early; called once."""

    def on_nonfinite(self, trainer: "Trainer", step: int) -> None:
        """Handle a NaN or infinite loss or gradient at `step`, once it is detected."""


# Your own callback classes; every run creates one instance of each.
CALLBACKS: list[type[Callback]] = []


class RunConfig(Protocol):
    """The settings that a trainer needs from `vit_train.config.run.TrainConfig`."""

    optim: OptimConfig
    train: LoopConfig
    seed: int
    compile: Any


class Trainer:
    """Trains a model on an objective, one optimizer step at a time; `run/train.py` has the loop."""

    # Done so far: steps, epochs, batches of the present epoch, and images.
    step = 0
    epoch = 0
    batch = 0
    images_seen = 0
    start = FRESH
    best: Best | None = None
    # The learning rate of the last step.
    lr = 0.0
    logged_at = -math.inf
    stop_reason = ""
    # The time of `time.monotonic` at which to stop.
    deadline = math.inf
    # True while the model is evaluated.
    evaluating = False

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        train_loader: TrainLoader,
        config: RunConfig,
        precision: Precision,
        callbacks: Iterable[Callback] = (),
        processes: Processes = ALONE,
    ) -> None:
        device = precision.device
        on_gpu = device.type == "cuda"
        if on_gpu:
            gc.collect()  # an earlier run's graphs: destroying one later would invalidate a capture
        for parameter in model.parameters():  # fused optimizers pair elements by place in memory
            parameter.data = parameter.data.contiguous()  # as the gradients are
        self.model = model
        self.objective = objective
        self.train_loader = train_loader
        self.make_batch = train_loader.batch
        self.optim = config.optim.settled()
        self.loop = config.train
        self.epochs = self.loop.num_epochs
        self.steps_per_epoch = len(train_loader)
        self.seed = config.seed
        self.precision = precision
        self.processes = processes
        self.callbacks = list(callbacks)
        # For fp16, whose gradients underflow; otherwise it does nothing.
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision.name == "fp16")
        self.ema = WeightAverage(model, self.loop.ema_decay) if self.loop.ema_decay else None
        self.parameters = trained_weights(model)
        self.buffers = list(model.buffers())  # such as BatchNorm's statistics
        self.optimizers = Optimizers(
            builder(self.optim)(model, self.optim), self.parameters, rate_scales(model, self.optim)
        )
        self.choose_workers(compiles(config.compile, device))
        self.gradients, self.sums, self.summed = joined_sums(
            self.parameters, len(objective.measures) * (2 if objective.weighs else 1)
        )
        # Points of the training curves: over the epoch, and since the last log.
        self.epoch_averages = Averages(objective.measures, device)
        self.log_averages = Averages(objective.measures, device)
        self.nonfinite = NonFiniteGuard(self.loop, self.steps_per_epoch, device, self.on_nonfinite)
        # One function, so that a GPU replays making the batch and the step as one graph.
        self.graphed_step = GraphedStep(
            self.take_step, device, self.loop.cuda_graph and self.optimizers.capturable
        )
        self.graphed_outputs = GraphedOutputs(
            outputs_of(self.eval_model, objective, precision), device, self.loop.cuda_graph
        )
        # Waiting for a GPU and asking the other processes happen only now and then.
        self.log_seconds = LOG_SECONDS if on_gpu else 0.0
        self.ask_every = self.loop.log_every if on_gpu and processes.count > 1 else 1
        # The averages' clocks already run; the loop leaves out the time from here until training.
        self.began = self.ready = time.perf_counter()

    def choose_workers(self, compiled: bool) -> None:
        """Choose the worker threads, and whether dropout has a random generator per image."""
        own_images = -(-self.loop.batch_size // self.processes.count)
        self.workers = make_workers(
            self.model, self.precision, own_images, self.loop.micro_batch, compiled
        )
        # Compiled code can draw only from PyTorch's global generator.
        self.per_image_rng = self.precision.device.type == "cpu" and not compiled
        self.optimizers.use(self.workers, self.precision)

    def compile(self) -> bool:
        """Compile the model and try it on one micro-batch; return True on success.

        On a GPU, also compile the function that makes a batch.
        """
        with self.workers:  # compiled code depends on the number of threads
            draws = self.graphed_step.moved(next(self.train_loader.draws(0)))
            if self.precision.device.type == "cuda":
                self.make_batch = compile_batch(self.make_batch, draws)
            sample = [each[: self.workers.micro_batch] for each in self.make_batch(*draws)]
            compiled = compile_model(self.model, self.objective, sample, self.precision)
        if not compiled:
            self.choose_workers(compiled=False)
        return compiled

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time of the block from the training speed."""
        began = time.perf_counter()
        yield
        self.leave_out(began)

    def leave_out(self, began: float) -> None:
        """Subtract the time since `began` from the training time, which determines the speed."""
        seconds = time.perf_counter() - began
        for averages in (self.epoch_averages, self.log_averages):
            averages.started += seconds

    def stop(self, reason: str = "by a callback") -> None:
        """End the run after the current step; the log will say "stopped after step N, REASON"."""
        self.stop_reason = self.stop_reason or reason

    def must_stop(self) -> bool:
        """Return True if this process or another one has called `stop`."""
        return self.step % self.ask_every == 0 and self.processes.any(bool(self.stop_reason))

    def train_on(self, draws: Iterable[Tensor]) -> None:
        """Make a batch from its draws, and take one optimizer step; do not wait for the device.

        Stop the run if the deadline has passed.
        """
        self.graphed_step(self.step_scalars(), *draws)
        self.step += 1
        self.batch += 1
        self.images_seen += self.train_loader.batch_size
        if time.monotonic() >= self.deadline:
            self.stop(TIME_IS_UP)

    def log_if_due(self) -> TrainLog | None:
        """Return the averages since the last log; None if no log is due.

        No point spans two epochs; the last one of an epoch covers its remaining steps. All
        processes log at the same steps, even if a log is due in only one of them.
        """
        is_last = self.batch == self.steps_per_epoch
        is_due = is_last or time.perf_counter() - self.logged_at >= self.log_seconds
        is_point = is_last or self.batch % self.loop.log_every == 0
        if not (is_point and self.processes.any(is_due)):
            return None
        log = self.read(self.log_averages)
        self.logged_at = time.perf_counter()
        return log

    def end_epoch(self) -> TrainLog:
        """Count the epoch, and return its averages."""
        log = self.read(self.epoch_averages)
        self.epoch += 1
        self.batch = 0
        return log

    def validate(self, loader: Iterable[Batch]) -> Evaluation:
        """Evaluate the model after an epoch, and note whether this epoch is the best."""
        with self.paused():
            val = self.evaluate(self.eval_model, loader)
        self.best = better(self.best, self.epoch, val, self.objective.best_by)
        return val

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch, counted from 0, to the model's modules that have a `set_epoch` method.

        Such a method returns False if the module stays the same; otherwise, a new CUDA graph is
        captured.
        """
        modules: list[Any] = [m for m in self.model.modules() if hasattr(m, "set_epoch")]
        # A list: all must be called.
        if any([module.set_epoch(epoch) is not False for module in modules]):
            self.graphed_step.restart()

    def step_scalars(self) -> Tensor:
        """Return the number of the next step, counted from 1, its learning rate and its EMA rate.

        The EMA rate is 0 without a moving average. The three numbers form one tensor (3,), so that
        a single copy takes them to a GPU. The tensor is float64.
        """
        number = self.step + 1
        average = self.ema.rate(number) if self.ema else 0.0
        self.lr = learning_rate(
            self.step, self.optim, self.steps_per_epoch, self.epochs, self.start
        )
        return torch.tensor([number, self.lr, average], dtype=torch.float64)

    def take_step(self, scalars: Tensor, *draws: Tensor) -> None:
        """Make a batch from its draws, and take one optimizer step on the batch's mean loss.

        `scalars` (3,) is the result of `step_scalars`. Add the batch's measures to the averages. A
        step with a NaN or infinite loss or gradient changes no weights. All tensors are on the
        device, and all work is done there, without waiting for the device.
        """
        number, lr, average_rate = scalars.unbind()
        # This process's share of the batch, (b,C,H,W) and (b,…).
        images, targets = self.make_batch(*draws)

        # Forward and backward; buffers, such as BatchNorm's statistics, change here.
        before = [value.clone() for value in self.buffers]
        sums = self.accumulate(images, targets)

        # Clip. The norm before clipping stays on the device until it is logged.
        for optimizer in self.optimizers.optimizers:
            self.scaler.unscale_(optimizer)
        limit = self.optim.clip_norm or math.inf
        norm = self.gradient_norm = nn.utils.clip_grad_norm_(self.parameters, limit)

        # Step. In fp16, a gradient that overflows is no fault while the scale can still be lowered,
        # down to 1. Scaling a 1 reads the scale on the device; get_scale() would wait for it.
        finite = sums[0].isfinite() & norm.isfinite()
        can_lower = self.scaler.is_enabled() and self.scaler.scale(torch.ones_like(norm)) > 1
        self.nonfinite.note(number, sums[0].isfinite() & (norm.isfinite() | can_lower))
        self.optimizers.step(lr, finite)
        self.scaler.update()
        for value, old in zip(self.buffers, before, strict=True):
            value.copy_(torch.where(finite, value, old))
        if self.ema:
            self.ema.update(average_rate * finite)
        sums = sums.masked_fill(~finite, 0)
        for averages in (self.epoch_averages, self.log_averages):
            averages.add(sums, finite * self.train_loader.batch_size)

    def accumulate(self, images: Tensor, targets: Tensor) -> Tensor:
        """Sum the gradients of all micro-batches and processes; return the summed measures (M,)."""
        count = self.train_loader.batch_size
        first = self.processes.rank * count // self.processes.count
        indices = torch.arange(first, first + len(images))
        self.summed.zero_()  # self.gradients and self.sums are views of it
        for part, gradients in self.workers.map(self.forward_backward, images, targets, indices):
            self.sums += part
            torch._foreach_add_(self.gradients, gradients)
        self.processes.all_reduce(self.summed)
        if not self.objective.weighs:
            return self.sums
        # Divide by the sum of the weights instead of the number of images, as in torch's
        # CrossEntropyLoss(weight=…).
        sums, weights = self.sums.chunk(2)
        factors = count / weights
        torch._foreach_mul_(self.gradients, factors[0])
        return sums * factors

    def forward_backward(
        self, images: Tensor, targets: Tensor, indices: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return a micro-batch's step sums and its contribution to the batch's gradient.

        `indices` are the images' indices in the whole batch. On a CPU, unless compiled, dropout is
        a function of the seed, the step and the image's index. This function runs in a worker
        thread.
        """
        generators = (
            per_image_generators(self.seed, self.step, indices.tolist())
            if self.per_image_rng
            else contextlib.nullcontext()
        )
        with generators, self.precision.autocast():
            sums = self.objective.step_sums(self.model, images, targets)
        loss = self.scaler.scale(sums[0] / self.train_loader.batch_size)
        return sums.detach(), torch.autograd.grad(loss, self.parameters, materialize_grads=True)

    def evaluate(self, model: nn.Module, loader: Iterable[Batch]) -> Evaluation:
        """Evaluate a model on a split; every process gets the result for the whole split."""
        self.evaluating = True
        result = evaluate(
            model,
            self.objective,
            loader,
            self.precision,
            self.workers,
            self.processes,
            self.graphed_outputs if model is self.eval_model else None,
        )
        self.evaluating = False
        return result

    @property
    def finished(self) -> bool:
        """Return True after the last epoch, or after `patience` epochs without improvement."""
        impatient = self.loop.patience is not None and self.waited >= self.loop.patience
        return impatient or self.epoch >= self.last_epoch

    @property
    def waited(self) -> int:
        """Return the number of epochs since the best one; 0 if no epoch is known to be the best."""
        return self.epoch - self.best.epoch if self.best else 0

    @property
    def stopped_early(self) -> bool:
        return self.finished and self.epoch < self.last_epoch

    @property
    def last_epoch(self) -> int:
        """Return the number of the last epoch of the schedule, counted from 1."""
        return self.start.epoch + self.epochs

    @property
    def eval_model(self) -> nn.Module:
        """Return the model with averaged weights; without train.ema_decay, the trained model."""
        return self.ema.model if self.ema else self.model

    def on_nonfinite(self, step: int) -> None:
        for callback in self.callbacks:
            callback.on_nonfinite(self, step)

    def read(self, averages: Averages) -> TrainLog:
        """Wait for the device, return the averages as a log, and reset them.

        Raise NonFinite if a NaN or infinite loss or gradient must end the run.
        """
        self.nonfinite.check(self.step)
        values, speed = averages.take()
        return TrainLog(self.epoch + 1, self.step, self.images_seen, values, self.lr, speed)

    @property
    def seconds(self) -> float:
        """Return the seconds of training so far, without pauses between stopping and resuming."""
        return time.perf_counter() - self.began
