"""Compiled and captured steps, and steps that wait for nothing."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.torch_version import TorchVersion

from vit_train.config.augment import AugmentConfig
from vit_train.config.model import ViTConfig
from vit_train.config.tasks import ClassifyConfig
from vit_train.data import policies as operations
from vit_train.data.batches import Normalize, TrainBatches
from vit_train.data.dataset import ImageSet, channel_statistics
from vit_train.loop.compile import GraphedStep, compile_batch, compile_model, packed
from vit_train.loop.device import Precision
from vit_train.model.vit import VisionTransformer
from vit_train.tasks.classify import Classify

FP32 = Precision("fp32", torch.device("cpu"))
BATCH = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))
CLASSIFY = Classify(ClassifyConfig(), ViTConfig(), (3, 32, 32), 10)


def build() -> VisionTransformer:
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig(embed_dim=16, depth=1))
    nn.init.normal_(model.head.weight)
    return model


def test_without_a_compiler_the_model_stays_eager(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise RuntimeError("\n  No working C++ compiler found\n in some long story")

    model = build()
    monkeypatch.setattr(model, "compile", lambda **_: setattr(model, "_compiled_call_impl", refuse))
    state = torch.get_rng_state()
    with caplog.at_level(logging.WARNING):
        assert not compile_model(model, CLASSIFY, BATCH, FP32)
    assert "cannot compile the training step (No working C++ compiler found" in caplog.text
    assert torch.equal(torch.get_rng_state(), state)
    assert torch._dynamo.config.recompile_limit >= 256  # 8 by default: of a sweep's models
    torch.testing.assert_close(model(BATCH[0]), build()(BATCH[0]))


@pytest.mark.parametrize("version, stops", [("2.11.0", True), ("2.14.1", False)])
def test_an_invalid_capture_ends_the_run_where_pytorch_cannot_continue(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str, stops: bool
) -> None:
    @contextmanager
    def capture(graph: object, stream: object, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"  # NCCL's watchdog may ask the GPU meanwhile
        yield

    def invalid(*inputs: torch.Tensor) -> None:
        raise torch.AcceleratorError("operation not permitted (cudaErrorStreamCaptureInvalidated)")

    for name in ("CUDAGraph", "current_stream", "set_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    step, ones = GraphedStep(invalid, torch.device("cpu")), torch.ones(1)
    step.replay = True  # as on a GPU
    if stops:
        with pytest.raises(ValueError, match=r"set train\.cuda_graph=false"):
            step.capture((ones,))
    else:
        step.capture((ones,))
        assert "continuing without one" in caplog.text and not step.replay
    # The next batch overwrites the buffers, not the batch from which they were made.
    assert step.buffers[0].data_ptr() != ones.data_ptr()


def test_a_large_batch_in_pinned_memory_is_copied_once() -> None:
    images, scalars, draws = torch.zeros(9, dtype=torch.uint8), torch.zeros(3), torch.zeros(2, 4)
    joined, alone = packed((scalars, images, draws))
    assert joined.shape == (11,) and alone.data_ptr() == images.data_ptr()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_and_eager_agree_in_logits_and_gradients() -> None:
    results = []
    images, labels = BATCH[0].double(), BATCH[1]  # CPUs differ too much in float32
    for compiled in (True, False):
        model = build().double()
        assert not compiled or compile_model(model, CLASSIFY, (images, labels), FP32)
        logits = model(images)
        loss = nn.functional.cross_entropy(logits, labels)
        results.append((logits, *torch.autograd.grad(loss, list(model.parameters()))))
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("policy", ["randaugment", "trivialaugment", "autoaugment"])
def test_a_compiled_batch_has_the_same_images(monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    """As a GPU makes it: every operation is applied to all images."""
    monkeypatch.setattr(operations, "apply_to_rows", operations.apply_to_all)
    photos = ImageSet(torch.randint(256, (40, 3, 16, 16), dtype=torch.uint8), torch.arange(40) % 10)
    normalize = Normalize(channel_statistics(photos.images), FP32.device)
    strong = AugmentConfig(policy=policy, erase_prob=0.3, mixup_alpha=0.8, cutmix_alpha=1.0)
    batches = TrainBatches(photos, 10, normalize, strong, 20, 0, FP32.device)
    first, second = batches.draws(0)
    make = compile_batch(batches.batch, first)
    assert make != batches.batch
    for draws in (first, second):
        torch.testing.assert_close(make(*draws), batches.batch(*draws), rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_without_a_compiler_batches_stay_eager(caplog: pytest.LogCaptureFixture) -> None:
    def broken(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        raise RuntimeError("Cannot find a working triton installation")

    assert compile_batch(broken, BATCH[:1]) is broken
    assert "cannot compile the training step (Cannot find a working triton" in caplog.text


@pytest.mark.slow
def test_no_step_waits_for_the_gpu() -> None:
    program = [sys.executable, str(Path(__file__).with_name("fake_gpu.py"))]
    no_gpu = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(program, capture_output=True, text=True, env=no_gpu, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert "_local_scalar_dense" in results.pop("what waits")
    assert "AssertionError: aten._to_copy" in results.pop("what is moved")
    assert len(results) == 18 and set(results.values()) == {"fine"}, results
