"""Single steps and batches on a GPU: `pytest -m gpu tests/gpu/test_steps.py`."""

from typing import Any

import pytest
import torch
from card import CPU, GPU, IS_GPU, compiles, gpu_alone, marks
from torch import Tensor
from torch.nn.functional import dropout
from torch.torch_version import TorchVersion

from vit_train.config.augment import AugmentConfig
from vit_train.config.model import ViTConfig
from vit_train.config.run import TrainConfig
from vit_train.config.tasks import ClassifyConfig
from vit_train.config.training import AdamWConfig, LoopConfig
from vit_train.data import batches
from vit_train.data.batches import EvalBatches, Normalize, TrainBatches
from vit_train.data.dataset import ImageSet, channel_statistics
from vit_train.loop.compile import WARM_UP, GraphedStep, compile_batch
from vit_train.loop.device import Precision
from vit_train.loop.trainer import Trainer
from vit_train.tasks import make_task

pytestmark = marks


def pictures(count: int = 300) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return ImageSet(images, torch.arange(count) % 10)


@pytest.mark.parametrize("how", ["fits", "does not", pytest.param("compiled", marks=compiles)])
@pytest.mark.parametrize(
    "augment",
    [
        AugmentConfig(),
        AugmentConfig(policy="autoaugment", erase_prob=0.5),
        AugmentConfig(policy="randaugment", mixup_alpha=0.8, cutmix_alpha=1.0),
        AugmentConfig(policy="trivialaugment", crop_scale=0.3),
    ],
)
def test_a_gpu_sees_the_images_of_the_cpu(
    augment: AugmentConfig, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the data set stays in main memory."""
    monkeypatch.setattr(batches, "GPU_SHARE", 0.0 if how == "does not" else 0.5)
    data = pictures()
    made = [
        TrainBatches(
            data, 10, Normalize(channel_statistics(data.images), device), augment, 64, 0, device
        )
        for device in (CPU, GPU)
    ]
    make = made[1].batch
    if how == "compiled":
        make = compile_batch(make, [each.to(GPU) for each in next(made[1].draws(0))])
        assert make != made[1].batch
    for (images, targets), draws in zip(made[0].epoch(0), made[1].draws(0), strict=True):
        others, their_targets = make(*(each.to(GPU) for each in draws))
        assert others.device.type == GPU.type
        # Triton divides and fuses products otherwise, so two gray levels may differ.
        different = (images - others.cpu()).abs().amax(1) > (0.03 if how == "compiled" else 1e-5)
        # A place half way between two pixels, or between two gray levels, may round either way;
        # stretched crops have more of the latter.
        assert different.float().mean() < (0.03 if augment.crop_scale else 0.01)
        torch.testing.assert_close(targets, their_targets.cpu())
    normalize = Normalize(channel_statistics(data.images), GPU)
    shown = torch.cat([images for images, _ in EvalBatches(data, normalize, 100, GPU)])
    assert torch.equal(normalize.undo(shown).cpu(), data.images)


def trainer_of(data: ImageSet, **loop: Any) -> Trainer:
    normalize = Normalize(channel_statistics(pictures().images), GPU)
    batches = TrainBatches(data, 10, normalize, AugmentConfig(), 50, 0, GPU)
    torch.manual_seed(0)
    task = make_task(ClassifyConfig(), ViTConfig(embed_dim=32, depth=2), (3, 32, 32), 10)
    config = TrainConfig(
        optim=AdamWConfig(), train=LoopConfig(epochs=4, batch_size=50, **loop), compile=False
    )
    model = task.build_model().to(GPU)
    return Trainer(model, task, batches, config, Precision("fp32", GPU))


def test_a_skipped_step_changes_no_weight_within_the_graph() -> None:
    trainer = trainer_of(pictures(), on_nonfinite="skip", log_every=4)
    draws = list(trainer.train_loader.draws(0))
    for each in draws[:6]:
        trainer.train_on(each)
    assert (trainer.graphed_step.graph is not None) == IS_GPU
    trainer.nonfinite.check(trainer.step)
    before = [weight.clone() for weight in trainer.parameters]
    normalize = trainer.train_loader.normalize  # type: ignore[attr-defined]
    scale = normalize.scale.clone()
    normalize.scale.fill_(float("nan"))
    trainer.train_on(draws[0])
    assert all(map(torch.equal, before, trainer.parameters))
    normalize.scale.copy_(scale)
    trainer.train_on(draws[1])
    assert not any(map(torch.equal, before, trainer.parameters))
    trainer.nonfinite.check(trainer.step)
    assert trainer.nonfinite.skipped == 1


def test_evaluation_as_a_graph_sees_each_batch_and_the_latest_weights() -> None:
    data = pictures(330)
    trainer, plain = trainer_of(data), trainer_of(data, cuda_graph=False)
    batches = EvalBatches(data, Normalize(channel_statistics(data.images), GPU), 50, GPU)
    for _ in range(2):
        results = [each.evaluate(each.eval_model, batches) for each in (trainer, plain)]
        assert results[0].loss == pytest.approx(results[1].loss, rel=1e-6)
        for weights in zip(trainer.parameters, plain.parameters, strict=True):
            for weight in weights:
                weight.data.mul_(1.5)
    assert (trainer.graphed_outputs.graphed.graph is not None) == IS_GPU


@gpu_alone
@pytest.mark.parametrize("cuda_graph", [True, False])
@pytest.mark.parametrize("share", [0.5, 0.0])
def test_the_loop_never_waits_between_two_logs(
    cuda_graph: bool, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the data set stays in main memory."""
    monkeypatch.setattr(batches, "GPU_SHARE", share)
    trainer = trainer_of(pictures(), log_every=1000, cuda_graph=cuda_graph)
    draws = list(trainer.train_loader.draws(0))
    for each in draws[:5]:
        trainer.train_on(each)
    torch.cuda.set_sync_debug_mode("error")
    try:
        trainer.train_on(draws[5])
    finally:
        torch.cuda.set_sync_debug_mode("default")


@gpu_alone
@pytest.mark.skipif(
    torch.__version__ < TorchVersion("2.13"),
    reason="the allocator and the random generator stay as if capturing",
)
def test_a_step_that_cannot_be_captured_leaves_no_damage() -> None:
    ones = torch.ones(8, device=GPU)

    def waiting(scale: Tensor) -> None:
        dropout(ones * scale, 0.5).sum().item()

    step = GraphedStep(waiting, GPU, replay=True)
    for _ in range(WARM_UP):
        step(torch.ones(1))

    step(torch.ones(1))
    assert step.graph is None and dropout(ones, 0.5).isfinite().all()
