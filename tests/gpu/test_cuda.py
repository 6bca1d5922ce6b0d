"""What is promised of a GPU, on a GPU: `pytest -m gpu`, some minutes on one H100.

All other tests are of the CPU, and see no GPU.
"""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Run

from vit_train.data import dataset as transfer
from vit_train.data.batches import EvalBatches, Normalize
from vit_train.data.config import AugmentConfig
from vit_train.data.dataset import ImageSet, channel_statistics
from vit_train.data.train_batches import TrainBatches
from vit_train.engine.config import AdamWConfig, LoopConfig
from vit_train.engine.precision import Precision
from vit_train.engine.trainer import Trainer
from vit_train.model.config import ViTConfig
from vit_train.runs.checkpoint import Checkpoint
from vit_train.runs.config import TrainConfig
from vit_train.tasks.config import ClassifyConfig
from vit_train.tasks.make import make_task

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # a GPU's libraries warn of what is not ours
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SMALL = [
    *("data.train_images=2000", "data.test_images=400", "model.embed_dim=64", "model.depth=3"),
    *("train.epochs=3", "train.batch_size=100", "train.log_every=3"),
]
EAGER = ["compile=false"]
NO_GRAPH = [*EAGER, "train.cuda_graph=false"]
FULL_PRECISION = ["precision=fp32"]


@pytest.fixture
def trained(run: Run) -> Callable[..., Path]:
    """trained("name", …): the folder of a run with these settings, without a warning."""

    def train(name: str, *settings: str) -> Path:
        outcome = run("vit-train", *SMALL, *settings, f"hydra.run.dir={name}")
        assert outcome.status == 0, outcome.err
        log = Path(name, "train.log").read_text(encoding="utf-8")
        assert "does not work here" not in log and "out of memory" not in log
        return Path(name)

    return train


def curve(folder: Path, column: str = "train_loss") -> list[float]:
    with (folder / "metrics.csv").open(encoding="utf-8") as file:
        return [float(row[column]) for row in csv.DictReader(file)]


def state(folder: Path, name: str = "last.safetensors") -> Checkpoint:
    return Checkpoint.load(folder / "checkpoints" / name)


def assert_same_weights(one: Path, other: Path) -> None:
    states = [state(folder) for folder in (one, other)]
    assert states[0].step == states[1].step
    for name, weight in states[0].model.items():
        assert torch.equal(weight, states[1].model[name]), name


def test_the_curves_in_fp32_are_those_of_the_cpu(trained: Callable[..., Path]) -> None:
    cpu = trained("cpu", "device=cpu", *FULL_PRECISION, *NO_GRAPH)
    for name, how in {"eager": NO_GRAPH, "graph": EAGER}.items():
        gpu = trained(name, "device=cuda", *FULL_PRECISION, *how)
        assert curve(gpu) == pytest.approx(curve(cpu), rel=2e-3)
        assert curve(gpu, "val_loss") == pytest.approx(curve(cpu, "val_loss"), rel=5e-3)


@pytest.mark.parametrize("kernels", ["scratch", "fused"])
def test_a_graph_changes_nothing_but_speed(trained: Callable[..., Path], kernels: str) -> None:
    settings = [
        *("device=cuda", "deterministic=true", f"model.kernels={kernels}", "train.ema_decay=0.9"),
        *("augment=strong", "model.dropout=0.1", "model.drop_path=0.1"),
    ]
    assert_same_weights(trained("graph", *settings, *EAGER), trained("none", *settings, *NO_GRAPH))


@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_lower_precisions_follow_fp32(trained: Callable[..., Path], precision: str) -> None:
    exact = trained("fp32", "device=cuda", *FULL_PRECISION, *EAGER)
    rounded = trained(precision, "device=cuda", f"precision={precision}", *EAGER)
    assert curve(rounded) == pytest.approx(curve(exact), rel=0.05)


@pytest.mark.parametrize("how", [["compile=true"], ["compile=true", "train.cuda_graph=false"]])
def test_compiled_steps_follow_eager_ones(trained: Callable[..., Path], how: list[str]) -> None:
    eager = trained("eager", "device=cuda", *FULL_PRECISION, *EAGER)
    compiled = trained("compiled", "device=cuda", *FULL_PRECISION, *how)
    assert curve(compiled) == pytest.approx(curve(eager), rel=5e-3)


def test_the_defaults_work(trained: Callable[..., Path], run: Run) -> None:
    """bf16, compiled, as one graph, with PyTorch's kernels."""
    folder = trained("run")
    outcome = run("vit-eval", f"ckpt={folder}")
    assert outcome.status == 0, outcome.err
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    found = json.loads((folder / "eval-test/results.json").read_text(encoding="utf-8"))
    assert found["acc"] == pytest.approx(summary["test"]["best"]["acc"], abs=0.005)


@pytest.mark.parametrize("how", [EAGER, NO_GRAPH])
def test_a_deterministic_run_goes_on_to_the_last_bit(
    trained: Callable[..., Path], run: Run, how: list[str]
) -> None:
    settings = ["device=cuda", "deterministic=true", "augment=strong", "model.dropout=0.1", *how]
    whole = trained("whole", *settings)
    outcome = run("vit-train", *SMALL, *settings, "hydra.run.dir=parts", "train.max_minutes=1e-9")
    while outcome.status == 0 and state(Path("parts"))["epoch"] < 3:
        stopped_at = state(Path("parts"))["step"]
        minutes = "train.max_minutes=1e-9" if stopped_at < 8 else "train.max_minutes=null"
        outcome = run("vit-train", "resume=parts", minutes)
    assert outcome.status == 0, outcome.err
    assert_same_weights(whole, Path("parts"))


@pytest.mark.parametrize(
    "settings",
    [
        ["task=reconstruct", "task.decoder_depth=1"],
        ["task=autoregress", "task.decoder_depth=1"],
        ["model.positions=relative", "model.head=gap"],
        ["model.positions=learned_2d", "model.positions_at=layers"],
        ["model.dropout=0.1", "model.drop_path=0.1", "train.micro_batch=30", "train.ema_decay=0.9"],
        ["model.pre_norm=false", "model.norm_affine=false", "model.activation=gelu_tanh"],
        ["train.on_nonfinite=skip", "deterministic=true"],
        ["optim=muon", "model.init=mimetic", "model.positions=sincos_2d", "model.head=gap"],
        ["optim=muon", "precision=fp16", "augment=strong"],
        ["model.stem=conv", "model.positions=rotary_2d", "model.qk_norm=true"],
    ],
)
@pytest.mark.parametrize("kernels", ["scratch", "fused"])
def test_every_kind_of_training_becomes_a_graph(
    trained: Callable[..., Path], run: Run, settings: list[str], kernels: str
) -> None:
    folder = trained("run", "device=cuda", f"model.kernels={kernels}", *settings, *EAGER)
    assert curve(folder)[-1] < curve(folder)[0]
    assert run("vit-eval", f"ckpt={folder}").status == 0


@pytest.mark.parametrize("model", ["cnn", "resnet"])
def test_convolutions_train(run: Run, model: str) -> None:
    settings = [each for each in SMALL if not each.startswith("model.")]
    outcome = run("vit-train", f"model={model}", *settings, *EAGER, "hydra.run.dir=run")
    assert outcome.status == 0 and "does not work here" not in outcome.out, outcome.err
    assert curve(Path("run"))[-1] < curve(Path("run"))[0]


def pictures(count: int = 300) -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return ImageSet(images, torch.arange(count) % 10)


@pytest.mark.parametrize("fits", [True, False])
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
    augment: AugmentConfig, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the data set stays in main memory."""
    monkeypatch.setattr(transfer, "SHARE", 0.5 if fits else 0.0)
    data = pictures()
    made = [
        TrainBatches(
            data, 10, Normalize(channel_statistics(data.images), device), augment, 64, 0, device
        )
        for device in (CPU, GPU)
    ]
    for (images, targets), (others, their_targets) in zip(
        made[0].epoch(0), made[1].epoch(0), strict=True
    ):
        assert others.is_cuda
        different = (images - others.cpu()).abs().amax(1) > 1e-5
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
    return Trainer(model, task, batches, None, config, Precision("fp32", GPU))


def advance(trainer: Trainer, draws: tuple[torch.Tensor, ...]) -> None:
    """Take a step as the loop does."""
    trainer.graphed_step(trainer.schedule(), *draws)
    trainer.step += 1


def test_a_skipped_step_changes_no_weight_within_the_graph() -> None:
    trainer = trainer_of(pictures(), on_nonfinite="skip", log_every=4, max_skips=100)
    draws = list(trainer.train_loader.draws(0))
    for number in range(6):
        advance(trainer, draws[number])
    assert trainer.graphed_step.graph is not None
    trainer.nonfinite.check(trainer.step)  # as the loop does: log_every notes are kept
    before = [weight.clone() for weight in trainer.parameters]
    normalize = trainer.train_loader.normalize  # type: ignore[attr-defined]
    scale = normalize.scale.clone()
    normalize.scale.fill_(float("nan"))
    advance(trainer, draws[0])
    assert all(map(torch.equal, before, trainer.parameters))
    normalize.scale.copy_(scale)
    advance(trainer, draws[1])
    assert not any(map(torch.equal, before, trainer.parameters))
    trainer.nonfinite.check(trainer.step)
    assert trainer.nonfinite.skipped == 1


@pytest.mark.parametrize("cuda_graph", [True, False])
def test_the_loop_never_waits_between_two_logs(cuda_graph: bool) -> None:
    trainer = trainer_of(pictures(), log_every=1000, cuda_graph=cuda_graph)
    draws = list(trainer.train_loader.draws(0))
    for number in range(5):
        advance(trainer, draws[number])
    torch.cuda.set_sync_debug_mode("error")
    try:
        advance(trainer, draws[5])
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_too_large_a_batch_is_answered_with_what_to_change(run: Run) -> None:
    """Its activations take some 400 GB, the model 2 GB."""
    torch.cuda.set_per_process_memory_fraction(0.1)  # the card may be shared
    try:
        outcome = run(
            "vit-train", "data.train_images=4000", "data.test_images=50", "train.batch_size=3600",
            "model.embed_dim=1024", "model.depth=12", "data.image_size=64", "hydra.run.dir=run",
            *EAGER,
        )  # fmt: skip
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
    assert outcome.status == 1 and "out of memory with 3600 images at once" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_gpus_train_one_model(run: Run, trained: Callable[..., Path]) -> None:
    alone = trained("alone", "device=cuda", *FULL_PRECISION, *NO_GRAPH)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [
        *("-m", "vit_train.commands.train", *SMALL, *FULL_PRECISION, *NO_GRAPH),
        *("device=cuda", "hydra.run.dir=two"),
    ]
    result = subprocess.run(
        [*launch, *command], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert result.returncode == 0, result.stderr
    assert curve(Path("two")) == pytest.approx(curve(alone), rel=5e-3)
