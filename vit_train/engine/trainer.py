"""The training loop. It tells callbacks what happened; what they do with it is theirs."""

import contextlib
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vit_train.engine.averages import Averages
from vit_train.engine.callbacks import Callback, TrainLog
from vit_train.engine.config import LoopConfig, OptimConfig
from vit_train.engine.device import Precision
from vit_train.engine.distributed import ALONE, Processes
from vit_train.engine.evaluation import evaluate
from vit_train.engine.metrics import Evaluation
from vit_train.engine.objective import Objective
from vit_train.engine.optim import WeightAverage, learning_rate, make_optimizer, restore_moments
from vit_train.engine.workers import has_dropout, make_workers
from vit_train.rng import per_image_generators

Batch = tuple[Tensor, Tensor]
# Where a run is, apart from its tensors.
COUNTERS = ("step", "epoch", "batch", "images_seen", "skipped")
ADVICE = "Try a lower optim.lr, a longer optim.warmup_epochs or a smaller optim.clip_norm"


class NonFinite(ArithmeticError):
    """The loss or its gradient is no number: the weights are lost, the last checkpoint is not."""


class TrainLoader(Protocol):
    """What the loop needs of its training data: `vit_train.data.batches.TrainBatches` is one."""

    # Images a step, of all processes together.
    @property
    def batch_size(self) -> int: ...

    def __len__(self) -> int: ...
    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, beginning with number `first`."""
        ...


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


class Trainer:
    """Trains a model towards an objective. All that a resumed run needs is in `state_dict`."""

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        train: TrainLoader,
        val: Iterable[Batch] | None,
        config: RunConfig,
        precision: Precision,
        callbacks: Sequence[Callback] = (),
        processes: Processes = ALONE,
    ) -> None:
        self.model, self.objective, self.train, self.val = model, objective, train, val
        self.optim, self.loop, self.seed = config.optim, config.train, config.seed
        self.precision, self.callbacks, self.processes = precision, callbacks, processes
        self.optimizer = make_optimizer(model, self.optim)
        self.scaler = precision.scaler()
        decay = self.loop.ema_decay
        self.ema = WeightAverage(model, decay) if decay else None
        self.workers = make_workers(
            model, precision.device, self.loop.batch_size, self.loop.micro_batch, config.compile
        )
        # Compiled code draws from PyTorch's generator alone.
        on_cpu = precision.device.type == "cpu"
        self.per_image_rng = on_cpu and not config.compile and has_dropout(model, "rate")
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.gradients = [torch.zeros_like(parameter) for parameter in self.parameters]
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        self.step = self.epoch = self.batch = self.images_seen = self.skipped = 0
        self.whole, self.recent = self._averages(), self._averages()
        # The first step whose loss or gradient was no number, on the device; 0 for none.
        self.bad_step = torch.zeros((), dtype=torch.long, device=precision.device)
        self.stop_requested = False
        self.began = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the beginning, of all processes that the run went on in, one after the other."""
        return time.perf_counter() - self.began

    @property
    def finished(self) -> bool:
        return self.epoch == self.loop.epochs

    @property
    def eval_model(self) -> nn.Module:
        """The averaged weights where there are any."""
        return self.ema.model if self.ema else self.model

    def state_dict(self) -> dict[str, Any]:
        """Everything that changes while training; NonFinite instead of weights that are lost."""
        self.require_finite()
        return {
            "model": self.model.state_dict(),
            "ema": self.ema.model.state_dict() if self.ema else None,
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "whole": self.whole.state_dict(),
            "recent": self.recent.state_dict(),
            "seconds": self.seconds,
            **{name: getattr(self, name) for name in COUNTERS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict` was taken, in the middle of an epoch if need be."""
        self.model.load_state_dict(state["model"])
        if self.ema:
            self.ema.model.load_state_dict(state["ema"])
        restore_moments(self.optimizer, state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])
        self.whole.load_state_dict(state["whole"])
        self.recent.load_state_dict(state["recent"])
        self.began = time.perf_counter() - float(state["seconds"])
        for name in COUNTERS:
            setattr(self, name, int(state[name]))
        in_epoch = 0 <= self.batch <= len(self.train) and 0 <= self.epoch <= self.loop.epochs
        if not in_epoch or min(self.step, self.images_seen, self.skipped) < 0:
            raise ValueError(f"there is no batch {self.batch} of epoch {self.epoch} in this run")

    def fit(self) -> None:
        """Train until the last epoch or until `stop_requested`; NonFinite if it diverges."""
        self.model.train()
        with self.workers:
            while not self.finished:
                log = self.run_epoch()
                if log is None:
                    self.notify("on_stop", self)
                    return
                began, self.whole = time.perf_counter(), self._averages()
                val = None if self.val is None else self.evaluate(self.eval_model, self.val)
                self.epoch, self.batch = self.epoch + 1, 0
                self.notify("on_epoch", self, log, val)
                for averages in (self.whole, self.recent):
                    averages.leave_out(time.perf_counter() - began)

    def notify(self, event: str, *what: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(*what)

    def evaluate(self, model: nn.Module, batches: Iterable[Batch]) -> Evaluation:
        return evaluate(
            model, self.objective, batches, self.precision, self.workers, self.processes
        )

    def run_epoch(self) -> TrainLog | None:
        """The rest of a pass over the data; None if a stop was asked for on the way."""
        for images, targets in self.train.epoch(self.epoch, self.batch):
            if self.processes.any(self.stop_requested):
                return None
            sums, count = self.take_step(images, targets)
            self.batch += 1
            self.whole.add(sums, count)
            self.recent.add(sums, count)
            if self.step % self.loop.log_every == 0:
                log = self._log(self.recent)
                self.recent = self._averages()
                self.notify("on_log", self, log)
            self.notify("on_step", self)
        return self._log(self.whole)

    def _averages(self) -> Averages:
        return Averages(self.objective.measures, self.precision.device)

    def take_step(self, images: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        """One optimizer step; the objective's sums and the number of images they are over."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(self.step)
        sums, count = self.compute_gradients(images, targets)
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.optim.clip_norm or math.inf)
        self.step += 1
        self.images_seen += count
        if self.may_step(sums[0], norm):
            self.scaler.step(self.optimizer)
            if self.ema:
                self.ema.update(self.model, self.step)
        else:
            sums, count = torch.zeros_like(sums), 0
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=False)
        return sums, count

    def rate(self, step: int) -> float:
        """The learning rate of this step, from 0."""
        return learning_rate(step, self.optim, len(self.train), self.loop.epochs)

    def may_step(self, loss: Tensor, norm: Tensor) -> bool:
        """Note whether both are numbers; False if the step is to be left out."""
        finite = loss.isfinite()
        if not self.scaler.is_enabled():  # which leaves out such steps by itself, as it should
            finite = finite & norm.isfinite()
        if self.loop.on_nonfinite == "stop":
            first = ~finite & (self.bad_step == 0)
            self.bad_step = torch.where(first, self.step, self.bad_step)
            return True
        if finite:
            return True
        self.skipped += 1
        self.notify("on_nonfinite", self, self.step)
        if self.skipped > self.loop.max_skips:
            raise NonFinite(f"{self.skipped} steps had no finite loss or gradient. {ADVICE}")
        return False

    def compute_gradients(self, images: Tensor, targets: Tensor) -> tuple[Tensor, int]:
        """Add up the gradient of the batch's mean loss; the objective's sums, and over how many.

        `images` is this process's share of the batch; the results are those of the whole batch.
        """
        alone = self.processes.count == 1
        count = len(images) if alone else self.train.batch_size
        first = self.processes.rank * count // self.processes.count

        def compute(
            part: Tensor, truth: Tensor, indices: Tensor
        ) -> tuple[Tensor, tuple[Tensor, ...]]:
            with self.noise(indices), self.precision.autocast():
                sums = self.objective.step_sums(self.model, part, truth)
            loss = self.scaler.scale(sums[0] / count)
            return sums.detach(), torch.autograd.grad(loss, self.parameters)

        totals = torch.zeros(len(self.objective.measures), device=images.device)
        indices = torch.arange(first, first + len(images))
        for sums, additions in self.workers.map(compute, images, targets, indices):
            totals += sums
            torch._foreach_add_(self.gradients, additions)
        self.processes.all_reduce([*self.gradients, totals])
        return totals, count

    def noise(self, indices: Tensor) -> contextlib.AbstractContextManager[None]:
        """On a CPU an image's dropout depends on the seed, the step and its place in the batch."""
        if not self.per_image_rng:
            return contextlib.nullcontext()
        return per_image_generators(self.seed, self.step, indices.tolist())

    def require_finite(self) -> None:
        """NonFinite, naming the first step that went wrong. This waits for the device."""
        step = int(self.bad_step)
        if step:
            self.notify("on_nonfinite", self, step)
            epoch, batch = self.place_of(step)
            raise NonFinite(
                f"the loss or its gradient was no finite number at step {step} (batch {batch + 1} "
                f"of epoch {epoch + 1}). {ADVICE}"
            )

    def place_of(self, step: int) -> tuple[int, int]:
        """The epoch and the number of the batch in it, both from 0, of a step, from 1."""
        return divmod(step - 1, len(self.train))

    def _log(self, averages: Averages) -> TrainLog:
        self.require_finite()
        values, speed = averages.read()
        lr = self.rate(self.step - 1)  # the last step's, also where that was before a resume
        return TrainLog(self.epoch + 1, self.step, self.images_seen, values, lr, speed)
