"""One library's model in this process, and the work that is timed with it."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._profiler import _ExperimentalConfig

from vit_train.bench.machine import gemm_ceiling, synchronize
from vit_train.bench.peers import build_peer
from vit_train.config import BenchConfig
from vit_train.data.batches import Batch, Draws, Normalize, TrainBatches
from vit_train.data.dataset import channel_statistics
from vit_train.engine.compile import compile_model, compiles
from vit_train.engine.device import Precision, keep_freed_memory, pick_device, pick_precision
from vit_train.engine.trainer import Trainer, TrainLoader
from vit_train.model.config import ViTConfig
from vit_train.model.flops import count_flops
from vit_train.report.metrics_csv import MetricsCsv
from vit_train.report.tensorboard import TensorBoard
from vit_train.report.terminal import Terminal
from vit_train.tasks.classify import Classify
from vit_train.tasks.config import ClassifyConfig

OURS = "vit_train"
LOOP_STEPS = 8
Work = Callable[[], object]


@dataclass(frozen=True)
class Contender:
    """A library to be measured and its input. `keep_memory` gives a peer our allocator settings."""

    package: str
    keep_memory: bool
    batch_size: int
    image_shape: tuple[int, int, int]
    num_classes: int
    config: BenchConfig

    @property
    def name(self) -> str:
        ours = self.package == OURS
        return self.package if ours or not self.keep_memory else f"{self.package}, our allocator"


class Bench:
    """The work that can be timed, by name.

    Each call processes one batch, except for "loop", which processes LOOP_STEPS batches.
    """

    def __init__(self, contender: Contender) -> None:
        if contender.keep_memory:
            keep_freed_memory()
        config = contender.config
        self.device = pick_device(config.device)
        self.precision = pick_precision(config.precision, self.device)
        torch.manual_seed(config.seed)
        count, classes = contender.batch_size, contender.num_classes
        self.images = torch.randn(count, *contender.image_shape, device=self.device)
        self.labels = torch.randint(classes, (count,), device=self.device)
        self.exit = ExitStack()
        build = our_work if contender.package == OURS else peer_work
        self.model, self.work = build(self, contender)
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())

    def time(self, name: str, seconds: float) -> float:
        """Return the median time of a call, from calls during `seconds` after a warm-up."""
        work = self.work[name]
        for _ in range(2):
            work()
        synchronize(self.device)
        times: list[float] = []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 3:
            started = time.perf_counter()
            work()
            synchronize(self.device)
            times.append(time.perf_counter() - started)
        return median(times)

    def trace(self, path: str) -> None:
        """Write a trace of three training steps, for Perfetto or chrome://tracing."""
        every_lane = _ExperimentalConfig(profile_all_threads=True)
        with torch.profiler.profile(experimental_config=every_lane) as profiler:
            for _ in range(3):
                self.work["train"]()
        profiler.export_chrome_trace(path)

    def ceiling(self, seconds: float) -> float:
        dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
        return gemm_ceiling(self.device, dtypes[self.precision.name], seconds)


def peer_work(bench: Bench, contender: Contender) -> tuple[nn.Module, dict[str, Work]]:
    """Return a peer's model and work.

    Training is as in every tutorial: the whole batch at once, forward, backward, step.
    """
    config = contender.config
    _, size, _ = contender.image_shape
    if not isinstance(config.model, ViTConfig):
        raise ValueError(
            f"vit-bench compares ViTs with other libraries, not model.name={config.model.name}"
        )
    model = build_peer(contender.package, config.model, size, contender.num_classes)
    model.to(bench.device).train()
    optimizers = config.optim.make(model)
    clip, smoothing = config.optim.clip_norm, classification(config).label_smoothing

    def train() -> None:
        with bench.precision.autocast():
            logits = model(bench.images)
            loss = F.cross_entropy(logits, bench.labels, label_smoothing=smoothing)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def infer_whole() -> None:
        model.eval()
        infer(model, bench.images, bench.precision)
        model.train()

    return model, {"train": train, "infer": infer_whole}


@torch.inference_mode()
def infer(model: nn.Module, images: Tensor, precision: Precision) -> None:
    with precision.autocast():
        model.forward(images)  # not the compiled code, which is only for training


def classification(config: BenchConfig) -> ClassifyConfig:
    if not isinstance(config.task, ClassifyConfig):
        raise ValueError(f"vit-bench measures classifiers, not task={config.task.name}")
    return config.task


class Limited:
    """A source with short epochs for the real loop: `steps` batches, then the next `steps`."""

    def __init__(self, source: TrainLoader, steps: int) -> None:
        self.source, self.steps = source, steps
        self.batch = source.batch
        self.endless = chain.from_iterable(map(source.draws, count()))

    def __len__(self) -> int:
        return self.steps

    @property
    def batch_size(self) -> int:
        return self.source.batch_size

    def draws(self, epoch: int, first: int = 0) -> Iterator[Draws]:
        return islice(self.endless, self.steps)

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        return (self.batch(*each) for each in self.draws(epoch))


def our_work(bench: Bench, contender: Contender) -> tuple[nn.Module, dict[str, Work]]:
    """Return our model and its work: the trainer's step, its parts, and the whole loop.

    The loop includes its data and reports.
    """
    config, device = contender.config, bench.device
    data = config.data.load().train
    source = TrainBatches(
        data,
        contender.num_classes,
        Normalize(channel_statistics(data.images), device),
        config.augment,
        contender.batch_size,
        config.seed,
        device,
    )
    task = Classify(
        classification(config), config.model, contender.image_shape, contender.num_classes
    )
    model = task.build_model().to(device)
    batches = Limited(task.train_loader(source), LOOP_STEPS)
    folder = Path(bench.exit.enter_context(tempfile.TemporaryDirectory()))
    callbacks = [
        TensorBoard(folder),
        MetricsCsv(folder / "metrics.csv"),
        bench.exit.enter_context(Terminal(LOOP_STEPS, 1)),
    ]
    settings = replace(config, train=replace(config.train, batch_size=contender.batch_size))
    trainer = Trainer(model, task, batches, None, settings, bench.precision, callbacks)
    workers = bench.exit.enter_context(trainer.workers)
    if compiles(config.compile, device):
        count = workers.micro_batch or contender.batch_size
        sample = bench.images[:count], bench.labels[:count]
        compile_model(model, task, sample, bench.precision)

    def forward(images: Tensor) -> Tensor:
        with bench.precision.autocast():
            logits: Tensor = model(images)
        return logits.detach()

    def gradients() -> None:
        compute = partial(trainer.forward_backward, count=len(bench.images))
        indices = torch.arange(len(bench.images))
        for _, part in workers.map(compute, bench.images, bench.labels, indices):
            torch._foreach_add_(trainer.gradients, part)

    def everything() -> None:
        trainer.batch = 0
        log = trainer.train_epoch()
        assert log is not None
        for callback in callbacks:
            callback.on_epoch(trainer, log, None)

    def infer_on_workers() -> None:
        model.eval()
        list(workers.map(lambda images: infer(model, images, bench.precision), bench.images))
        model.train()

    return model, {
        "train": lambda: trainer.take_step(trainer.schedule(), bench.images, bench.labels),
        "infer": infer_on_workers,
        "forward": lambda: list(workers.map(forward, bench.images)),
        "gradients": gradients,
        "input": lambda: next(batches.epoch(0)),
        "loop": everything,
    }


def flops_per_image(contender: Contender) -> int:
    """Return the FLOPs per image of the matrix products in one training step of our model."""
    shape, classes = contender.image_shape, contender.num_classes
    return count_flops(contender.config.model, shape, classes, backward=True)
