"""Our model in this process, and the work that is timed with it."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from itertools import count, islice
from pathlib import Path

import torch
from torch import Tensor
from torch._C._profiler import _ExperimentalConfig

from vit_train.bench.contender import Ours
from vit_train.bench.turn import FIRST_CALLS, Subject, Turn, Work, take_turn
from vit_train.config import TrainConfig
from vit_train.data.batches import Batch, DrawnBatches, Normalize, TrainBatches
from vit_train.data.dataset import channel_statistics
from vit_train.engine.callbacks import Callback
from vit_train.engine.compile import compiles
from vit_train.engine.device import choose_algorithms, keep_freed_memory, pick_device
from vit_train.engine.graphed_step import GraphedStep
from vit_train.engine.precision import set_precision
from vit_train.engine.train_loader import TrainLoader
from vit_train.engine.trainer import Trainer
from vit_train.report.metrics_csv import MetricsCsv
from vit_train.report.tensorboard import TensorBoard
from vit_train.report.terminal import Terminal
from vit_train.tasks.classify import Classify
from vit_train.tasks.config import ClassifyConfig

LOOP_STEPS = 8


class Limited(DrawnBatches):
    """The real data in short epochs: `steps` batches, then the next `steps`.

    `load` is called for the first of them, so that what is timed before holds no data.
    """

    def __init__(
        self, load: Callable[[], TrainLoader], batch_size: int, steps: int, device: torch.device
    ) -> None:
        self.load, self.batch_size, self.steps, self.device = load, batch_size, steps, device
        self.endless = (draws for epoch in count() for draws in self.source.draws(epoch))

    @cached_property
    def source(self) -> TrainLoader:
        return self.load()

    def __len__(self) -> int:
        return self.steps

    def draws(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, ...]]:
        return islice(self.endless, self.steps)

    def batch(self, *draws: Tensor) -> Batch:
        return self.source.batch(*draws)


def measure(ours: Ours, started: float) -> Turn:
    return take_turn(build(ours), ours.seconds, started)


def build(ours: Ours) -> Subject:
    """Return our model and its work: the trainer's step and inference.

    If it is to be complete, also a step's parts and the whole loop with its data and reports.
    """
    exit = ExitStack()
    timed = OurWork(ours, exit)
    work: dict[str, Work] = {"train": timed.train}
    if ours.complete:
        work |= {"gradients": timed.gradients, "input": timed.input, "loop": timed.loop}
    work["infer"] = timed.infer  # last, because it leaves the model in eval mode
    return Subject(timed.device, timed.model, timed.first_step, work, exit)


class OurWork:
    """Our model, its trainer, and a batch; each method is a piece of work that is timed."""

    def __init__(self, ours: Ours, exit: ExitStack) -> None:
        keep_freed_memory()
        self.config, self.device = ours.config, pick_device(ours.device)
        if self.device.type != "cpu":
            choose_algorithms(self.config.deterministic)
        self.precision = set_precision(ours.precision, self.device)
        torch.manual_seed(ours.seed)
        self.task = Classify(
            classification(self.config), self.config.model, ours.image_shape, ours.num_classes
        )
        self.model = self.task.build_model().to(self.device).train()
        self.batches = Limited(
            lambda: self.task.train_loader(images_of(ours)),
            ours.batch_size,
            LOOP_STEPS,
            self.device,
        )
        self.callbacks = reports(exit) if ours.complete else []
        loop = replace(self.config.train, batch_size=ours.batch_size)
        settings = replace(self.config, train=loop)
        self.trainer = Trainer(
            self.model, self.task, self.batches, None, settings, self.precision, self.callbacks
        )
        self.workers = exit.enter_context(self.trainer.workers)
        self.images = torch.randn(ours.batch_size, *ours.image_shape, device=self.device)
        self.labels = torch.randint(ours.num_classes, (ours.batch_size,), device=self.device)
        self.task.prepare(self.labels)
        # On a GPU the step becomes a CUDA graph after some calls, as in training.
        self.step = GraphedStep(
            lambda schedule: self.trainer.take_step(schedule, self.images, self.labels),
            self.device,
            self.trainer.graphed_step.replay,
        )

    def train(self) -> None:
        self.step(self.trainer.schedule())
        if self.trainer.graphed_step.replay and not self.step.replay:
            raise ValueError("its steps cannot be captured as a CUDA graph here")

    def first_step(self) -> None:
        chosen = compiles(self.config.compile, self.device)
        if chosen and not self.trainer.compile(self.images, self.labels):
            raise ValueError("it cannot be compiled here")
        self.train()

    @torch.inference_mode()
    def infer_part(self, part: Tensor) -> None:
        with self.precision.autocast():
            self.model.forward(part)  # as vit-eval does: the compiled code is only for training

    def infer(self) -> None:
        if self.model.training:
            self.model.eval()
        list(self.workers.map(self.infer_part, self.images))

    def gradients(self) -> None:
        compute = partial(self.trainer.forward_backward, count=len(self.images))
        indices = torch.arange(len(self.images))
        for _, part in self.workers.map(compute, self.images, self.labels, indices):
            torch._foreach_add_(self.trainer.gradients, part)

    def input(self) -> None:
        next(self.batches.epoch(0))

    def loop(self) -> None:
        self.trainer.batch = 0
        log = self.trainer.train_epoch()
        assert log is not None
        for callback in self.callbacks:
            callback.on_epoch(self.trainer, log, None)


def images_of(ours: Ours) -> TrainBatches:
    """Load the data, augmented as the config says."""
    config, device = ours.config, pick_device(ours.device)
    data = config.data.load().train
    normalize = Normalize(channel_statistics(data.images), device)
    return TrainBatches(
        data, ours.num_classes, normalize, config.augment, ours.batch_size, ours.seed, device
    )


def reports(exit: ExitStack) -> Sequence[Callback]:
    """Return the reports of a run, in a folder that `exit` removes."""
    folder = Path(exit.enter_context(tempfile.TemporaryDirectory()))
    terminal = exit.enter_context(Terminal(LOOP_STEPS, 1))
    return [TensorBoard(folder), MetricsCsv(folder / "metrics.csv"), terminal]


def classification(config: TrainConfig) -> ClassifyConfig:
    if not isinstance(config.task, ClassifyConfig):
        raise ValueError(f"vit-bench measures classifiers, not task={config.task.name}")
    return config.task


def trace(ours: Ours, path: Path) -> None:
    """Write a trace of three training steps, for Perfetto or chrome://tracing."""
    subject = build(ours)
    every_lane = _ExperimentalConfig(profile_all_threads=True)
    with subject.exit:
        subject.first_step()
        for _ in range(FIRST_CALLS):
            subject.work["train"]()
        with torch.profiler.profile(experimental_config=every_lane) as profiler:
            for _ in range(3):
                subject.work["train"]()
    profiler.export_chrome_trace(str(path))
