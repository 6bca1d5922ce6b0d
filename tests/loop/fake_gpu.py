"""Nothing of a training step waits for a GPU or moves a tensor between it and the CPU.

The tensors here say that they are on a GPU, but have shapes alone, no values: PyTorch raises an
error for everything that would need a value on the CPU or two devices in one operation. Gradients
need a real GPU, so that they are taken on the meta device, which has no values either.

A program for test_compile.py, because tensors without values do not always survive Python's
garbage collection.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from vit_train.config.augment import AugmentConfig
from vit_train.config.model import CnnConfig, FastCnnConfig, ModelConfig, ResNetConfig, ViTConfig
from vit_train.config.run import TrainConfig
from vit_train.config.tasks import (
    AutoregressConfig,
    ClassifyConfig,
    DistillConfig,
    ReconstructConfig,
    TaskConfig,
)
from vit_train.config.training import AdamWConfig, LoopConfig, MuonConfig, OptimConfig
from vit_train.data.batches import Normalize, TrainBatches
from vit_train.data.dataset import ImageSet, Statistics
from vit_train.loop.device import Precision
from vit_train.loop.objective import TrainLoader
from vit_train.loop.optimizers import Optimizers
from vit_train.loop.trainer import Trainer
from vit_train.model.build import on_meta
from vit_train.model.layers import Head
from vit_train.tasks import Task, make_task
from vit_train.tasks.classify import Distill, Teacher

GPU = torch.device("cuda:0")
STRONG = AugmentConfig(
    policy="randaugment", erase_prob=0.25, mixup_alpha=0.8, cutmix_alpha=1.0, crop_scale=0.5
)
VIT = ViTConfig(embed_dim=16, depth=2, num_heads=2, patch_dropout=0.5)
DROPOUT = ViTConfig(
    embed_dim=16, depth=2, num_heads=2, kernels="scratch", positions="relative", dropout=0.1,
    branch_dropout=0.1, drop_path=0.1,
)  # fmt: skip

MODERN = ViTConfig(
    embed_dim=16, depth=2, num_heads=2, positions="rotary_2d", qk_norm=True, head="gap",
    stem="conv", init="mimetic",
)  # fmt: skip


STATISTICS = Statistics((0.5,) * 3, (0.2,) * 3)


class NoTransfer(TorchDispatchMode):
    """Raises AssertionError for a copy between devices."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        places = {each.device for each in (*args, result) if isinstance(each, Tensor)}
        assert "copy" not in func.__name__ or len(places) < 2, f"{func}: {places}"
        return result


def loader_on(device: torch.device, task: Task, augment: AugmentConfig) -> TrainLoader:
    images = ImageSet(torch.zeros(48, 3, 32, 32, dtype=torch.uint8), torch.zeros(48).long())
    normalize = Normalize(STATISTICS, device)
    return task.train_loader(TrainBatches(images, 10, normalize, augment, 16, 0, device))


def prepared(task: Task, device: torch.device) -> Task:
    """Give a task what it has before the first step: weights of classes, a teacher."""
    teacher = None
    if isinstance(task, Distill):
        normalize = Normalize(STATISTICS, device)
        with device:
            teacher = Teacher(task.build_model(), normalize, normalize)
    labels = torch.zeros(48, dtype=torch.long, device=device)
    return task.for_training(labels, False, task.best_by, teacher)


def step(
    model: ModelConfig,
    task: TaskConfig,
    augment: AugmentConfig,
    optim: OptimConfig | None = None,
    **loop: Any,
) -> Callable[[], None]:
    """Return a function that makes a batch and takes a step on it, after one such step."""
    learned = make_task(task, model, (3, 32, 32), 10)
    draws = next(loader_on(torch.device("cpu"), learned, augment).draws(0))
    config = TrainConfig(optim=optim or AdamWConfig(), train=LoopConfig(batch_size=16, **loop))
    with FakeTensorMode(allow_non_fake_inputs=True) as shapes_alone:
        learned = prepared(learned, GPU)
        with GPU:
            network = learned.build_model()
        loader = loader_on(GPU, learned, augment)
        trainer = Trainer(network, learned, loader, config, Precision("fp32", GPU))
        drawn = [torch.empty(each.shape, dtype=each.dtype, device=GPU) for each in draws]
        schedule = torch.empty(3, device=GPU, dtype=torch.float64)

    def take_step() -> None:
        with shapes_alone:
            trainer.take_step(schedule, *drawn)

    take_step()
    return take_step


@contextlib.contextmanager
def fake_gpu() -> Iterator[None]:
    def gradients(loss: Tensor, weights: list[Tensor], **how: bool) -> tuple[Tensor, ...]:
        assert loss.shape == () and loss.requires_grad
        return tuple(map(torch.empty_like, weights))

    with (
        patch.object(torch.cuda, "Stream", lambda device: None),
        patch.object(torch.cuda, "mem_get_info", lambda device: (10**9, 10**9)),
        patch.object(torch.autograd, "grad", gradients),
        # What PyTorch cannot do without values: AdamW's step, and cuDNN.
        patch.object(torch, "_fused_adamw_", lambda *args, **settings: None),
        torch.backends.cudnn.flags(enabled=False),
    ):
        yield


def whole_step(model: ModelConfig, task: TaskConfig, augment: AugmentConfig, **loop: Any) -> None:
    """Take a step in which nothing may wait or be moved; gradients are made up."""
    with fake_gpu():
        take_step = step(model, task, augment, **loop)
        with NoTransfer():
            take_step()


def gradients(model: ModelConfig, task: TaskConfig, augment: AugmentConfig, **loop: Any) -> None:
    """Take the gradients of a batch, where nothing may wait or be moved."""
    learned = make_task(task, model, (3, 32, 32), 10)
    batch = next(loader_on(torch.device("cpu"), learned, augment).epoch(0))
    images, targets = (each.to("meta") for each in batch)
    learned = prepared(learned, torch.device("meta"))
    network = on_meta(learned.build_model, model)
    # The meta device has no autocast.
    with patch.object(Head, "forward", nn.Linear.forward), NoTransfer():
        sums = learned.step_sums(network, images, targets)
        trained = [each for each in network.parameters() if each.requires_grad]
        found = torch.autograd.grad(sums[0], trained)
    assert all(gradient.is_meta for gradient in found)


def waiting(step: Callable[[Optimizers, Tensor, Tensor], object]) -> None:
    with patch.object(Optimizers, "step", step):
        whole_step(VIT, ClassifyConfig(), AugmentConfig())


RESNET = ResNetConfig(widths=[8, 16], blocks=1)
FAST_CNN = FastCnnConfig(widths=[16])
WEIGHTED = ClassifyConfig(class_weights=[0.5, 2] * 5)
TRIVIAL, LEARNED = AugmentConfig(policy="trivialaugment"), AugmentConfig(policy="autoaugment")
STEPS: dict[str, tuple[ModelConfig, TaskConfig, AugmentConfig, dict[str, Any]]] = {
    "plain": (VIT, ClassifyConfig(), AugmentConfig(), {}),
    "strong": (VIT, ClassifyConfig(), STRONG, {"ema_decay": 0.9, "on_nonfinite": "skip"}),
    "dropout": (DROPOUT, DistillConfig(teacher="itself"), LEARNED, {"micro_batch": 6}),
    "muon": (MODERN, WEIGHTED, AugmentConfig(), {"optim": MuonConfig()}),
    "reconstruct": (VIT, ReconstructConfig(), AugmentConfig(), {}),
    "autoregress": (VIT, AutoregressConfig(), TRIVIAL, {}),
    "cnn": (CnnConfig(), ClassifyConfig(), AugmentConfig(), {}),
    "resnet": (RESNET, ClassifyConfig(), STRONG, {"ema_decay": 0.9}),
    "fast_cnn": (FAST_CNN, ClassifyConfig(), AugmentConfig(), {"optim": MuonConfig()}),
}


def cases() -> Iterator[tuple[str, Callable[[], None]]]:
    for name, (model, task, augment, loop) in STEPS.items():
        yield f"step {name}", partial(whole_step, model, task, augment, **loop)
        yield f"gradients {name}", partial(gradients, model, task, augment)
    yield "what waits", partial(waiting, lambda self, lr, finite: float(lr))
    yield "what is moved", partial(waiting, lambda self, lr, finite: lr.cpu())


def outcome(case: Callable[[], None]) -> str:
    """Run a case in a process of its own, because a tensor without values may damage the memory."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        try:
            case()
            text = "fine"
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as file:
        return file.read() or "crashed"


if __name__ == "__main__":
    results = {name: outcome(case) for name, case in cases()}
    print(json.dumps(results), flush=True)
    os._exit(0)
