"""Whole runs on a GPU: `pytest -m gpu tests/gpu/test_runs.py`.

The tests of the default suite are of the CPU, and see no GPU.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from card import DEVICE, compiles, gpu_alone, marks
from conftest import Run, csv_rows
from pytest import param

from vit_train.data import batches
from vit_train.trained.checkpoint import Checkpoint

pytestmark = marks

ON_GPU = f"device={DEVICE}"
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
        run.succeeds("vit-train", *SMALL, *settings, f"hydra.run.dir={name}")
        log = Path(name, "train.log").read_text(encoding="utf-8")
        assert "continuing without" not in log and "out of memory" not in log
        return Path(name)

    return train


def curve(folder: Path, column: str = "train_loss") -> list[float]:
    return [float(row[column]) for row in csv_rows(folder / "metrics.csv")]


def state(folder: Path, name: str = "last.safetensors") -> Checkpoint:
    return Checkpoint.load(folder / "checkpoints" / name)


def assert_same_weights(one: Path, other: Path) -> None:
    first, second = map(state, (one, other))
    assert first.step == second.step
    torch.testing.assert_close(first.model, second.model, rtol=0, atol=0)


def test_the_curves_in_fp32_are_those_of_the_cpu(trained: Callable[..., Path]) -> None:
    cpu = trained("cpu", "device=cpu", *FULL_PRECISION, *NO_GRAPH)
    for name, how in {"eager": NO_GRAPH, "graph": EAGER}.items():
        gpu = trained(name, ON_GPU, *FULL_PRECISION, *how)
        assert curve(gpu) == pytest.approx(curve(cpu), rel=2e-3)
        assert curve(gpu, "val_loss") == pytest.approx(curve(cpu, "val_loss"), rel=5e-3)


@pytest.mark.parametrize("kernels", ["scratch", "fused"])
def test_a_graph_changes_nothing_but_speed(trained: Callable[..., Path], kernels: str) -> None:
    settings = [
        *(ON_GPU, "deterministic=true", f"model.kernels={kernels}", "train.ema_decay=0.9"),
        *("augment=strong", "model.dropout=0.1", "model.drop_path=0.1"),
    ]
    assert_same_weights(trained("graph", *settings, *EAGER), trained("none", *settings, *NO_GRAPH))


EXACT: list[float] = []  # the curve in fp32, trained once for all of the following


@pytest.mark.parametrize(
    "how, tolerance",
    [
        param(["precision=tf32", *EAGER], 0.05, marks=gpu_alone),
        (["precision=bf16", *EAGER], 0.05),
        param(["precision=fp16", *EAGER], 0.05, marks=gpu_alone),
        param([*FULL_PRECISION, "compile=true"], 5e-3, marks=compiles),
        param([*FULL_PRECISION, "compile=true", "train.cuda_graph=false"], 5e-3, marks=compiles),
    ],
)
def test_lower_precisions_and_compiled_steps_follow_fp32(
    trained: Callable[..., Path], how: list[str], tolerance: float
) -> None:
    if not EXACT:
        EXACT.extend(curve(trained("fp32", ON_GPU, *FULL_PRECISION, *EAGER)))
    assert curve(trained("other", ON_GPU, *how)) == pytest.approx(EXACT, rel=tolerance)


@compiles
def test_a_deterministic_run_compiles_to_the_same_bits(
    trained: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if Inductor chooses its kernels anew."""
    for name in ("one", "other"):
        torch.compiler.reset()
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / name / "inductor"))
        trained(name, ON_GPU, "deterministic=true", "compile=true")
    assert_same_weights(Path("one"), Path("other"))


@pytest.mark.parametrize("how", [EAGER, param(["compile=true"], marks=compiles)])
def test_images_that_do_not_fit_give_the_same_curve(
    trained: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, how: list[str]
) -> None:
    there = trained("there", ON_GPU, *FULL_PRECISION, "augment=strong", *how)
    monkeypatch.setattr(batches, "GPU_SHARE", 0.0)
    sent = trained("sent", ON_GPU, *FULL_PRECISION, "augment=strong", *how)
    assert curve(sent) == pytest.approx(curve(there), rel=2e-3)


@compiles
def test_the_defaults_work(trained: Callable[..., Path], run: Run) -> None:
    """bf16, compiled, as one graph, with PyTorch's kernels."""
    folder = trained("run")
    run.succeeds("vit-eval", f"ckpt={folder}")
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    found = json.loads((folder / "eval-test/results.json").read_text(encoding="utf-8"))
    assert found["result"]["acc"] == pytest.approx(summary["test"]["best"]["acc"], abs=0.005)


@pytest.mark.parametrize(
    "how", [EAGER, NO_GRAPH, param([*EAGER, "precision=fp16"], marks=gpu_alone)]
)
def test_a_deterministic_run_resumes_bitwise(
    trained: Callable[..., Path], run: Run, how: list[str]
) -> None:
    settings = [ON_GPU, "deterministic=true", "augment=strong", "model.dropout=0.1", *how]
    whole = trained("whole", *settings)
    begin = [*SMALL, *settings, "hydra.run.dir=parts", "train.max_minutes=1e-9"]
    run.succeeds("vit-train", *begin)
    while state(Path("parts")).epoch < 3:
        stopped_at = state(Path("parts")).step
        minutes = "train.max_minutes=1e-9" if stopped_at < 8 else "train.max_minutes=null"
        run.succeeds("vit-train", "resume=parts", minutes)
    assert_same_weights(whole, Path("parts"))


@pytest.mark.parametrize(
    "settings",
    [
        ["task=reconstruct", "task.decoder_depth=1", "task.normalize_target=true"],
        ["task=autoregress", "task.decoder_depth=1", "task.given_rows=4"],
        ["model.patch_dropout=0.5", "model.patch_dropout_epochs=1"],  # captures twice
        ["optim=sgd", "optim.schedule=wsd", "model.activation=swiglu", "model.head=gap_norm"],
        ["model.positions=relative", "model.head=gap"],
        ["model.positions=learned_2d", "model.positions_at=layers"],
        ["model.dropout=0.1", "model.drop_path=0.1", "train.micro_batch=30", "train.ema_decay=0.9"],
        ["model.pre_norm=false", "model.activation=gelu_tanh"],
        ["train.on_nonfinite=skip", "deterministic=true"],
        ["optim=muon", "model.init=mimetic", "model.positions=sincos_2d", "model.head=gap"],
        param(["optim=muon", "precision=fp16", "augment=strong"], marks=gpu_alone),
        ["model.stem=conv", "model.positions=rotary_2d", "model.qk_norm=true"],
    ],
)
@pytest.mark.parametrize("kernels", ["scratch", "fused"])
def test_every_kind_of_training_becomes_a_graph(
    trained: Callable[..., Path], run: Run, settings: list[str], kernels: str
) -> None:
    folder = trained("run", ON_GPU, f"model.kernels={kernels}", *settings, *EAGER)
    assert curve(folder)[-1] < curve(folder)[0]
    assert run("vit-eval", f"ckpt={folder}").status == 0


@pytest.mark.parametrize("model", ["cnn", "resnet", "fast_cnn"])
def test_convolutions_train(run: Run, model: str) -> None:
    settings = [each for each in SMALL if not each.startswith("model.")]
    outcome = run("vit-train", f"model={model}", *settings, *EAGER, "hydra.run.dir=run")
    assert outcome.status == 0 and "continuing without" not in outcome.out, outcome.err
    assert curve(Path("run"))[-1] < curve(Path("run"))[0]


LARGE = ["model.embed_dim=512", "model.depth=12", "data.image_size=64", *EAGER]


@pytest.fixture
def four_gigabytes() -> Iterator[None]:
    """Let this process have 4 GB of the card, which may be shared."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, 4e9 / total))
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


@gpu_alone
@pytest.mark.usefixtures("four_gigabytes")
@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        (
            ["train.batch_size=3600"],
            "out of memory with 3,600 images at once: use train.micro_batch=1800",
        ),
        (["train.batch_size=16", "train.eval_batch_size=4000"], "use train.eval_batch_size=2000"),
    ],
)
def test_out_of_memory_names_the_setting_to_change(
    run: Run, settings: list[str], advice: str
) -> None:
    images = ["data.train_images=8000", "data.val_fraction=0.5", "data.test_images=50"]
    training = [*images, *LARGE, *settings, "train.epochs=1", "hydra.run.dir=run"]
    run.fails(advice, "vit-train", *training)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("how", [[*FULL_PRECISION, *NO_GRAPH], param([], marks=compiles)])
def test_two_gpus_train_one_model(run: Run, trained: Callable[..., Path], how: list[str]) -> None:
    """By default, too: compiled, each step as one graph in each process."""
    alone = trained("alone", ON_GPU, *how)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*("-m", "vit_train.commands.train", *SMALL, *how, ON_GPU, "hydra.run.dir=two")]
    result = subprocess.run(
        [*launch, *command], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert result.returncode == 0, result.stderr
    assert "continuing without" not in result.stdout + result.stderr
    assert curve(Path("two")) == pytest.approx(curve(alone), rel=0.05 if not how else 5e-3)
