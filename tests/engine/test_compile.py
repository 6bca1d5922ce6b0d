import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.torch_version import TorchVersion

from vit_train.engine.compile import GraphedStep, compile_model
from vit_train.engine.precision import Precision
from vit_train.model.config import ViTConfig
from vit_train.model.vit import VisionTransformer
from vit_train.tasks.classify import Classify
from vit_train.tasks.config import ClassifyConfig

FP32 = Precision("fp32", torch.device("cpu"))
BATCH = torch.randn(4, 3, 32, 32), torch.randint(10, (4,))
CLASSIFY = Classify(ClassifyConfig(), ViTConfig(), (3, 32, 32), 10)


def build() -> VisionTransformer:
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig(embed_dim=16, depth=1))
    nn.init.normal_(model.head.weight)
    return model


def test_without_a_compiler_the_model_works_uncompiled_and_the_user_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise RuntimeError("\n  No working C++ compiler found\n in some long story")

    model = build()
    monkeypatch.setattr(model, "compile", lambda **_: setattr(model, "_compiled_call_impl", refuse))
    state = torch.get_rng_state()
    with caplog.at_level(logging.WARNING):
        assert not compile_model(model, CLASSIFY, BATCH, FP32)
    assert "continuing without it: No working C++ compiler found" in caplog.text
    assert torch.equal(torch.get_rng_state(), state)
    assert torch._dynamo.config.recompile_limit >= 256  # 8 by default: of a sweep's models
    torch.testing.assert_close(model(BATCH[0]), build()(BATCH[0]))


@pytest.mark.parametrize("version, stops", [("2.11.0", True), ("2.14.1", False)])
def test_an_invalid_capture_ends_the_run_where_pytorch_cannot_continue(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str, stops: bool
) -> None:
    @contextmanager
    def capture(graph: object, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"  # NCCL's watchdog may ask the GPU meanwhile
        yield

    def invalid(*inputs: torch.Tensor) -> None:
        raise torch.AcceleratorError("operation not permitted (cudaErrorStreamCaptureInvalidated)")

    for name in ("CUDAGraph", "current_stream", "set_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    step = GraphedStep(invalid, torch.device("cpu"))
    if stops:
        with pytest.raises(ValueError, match=r"set train\.cuda_graph=false"):
            step.capture((torch.ones(1),))
    else:
        step.capture((torch.ones(1),))
        assert "continuing without it" in caplog.text and not step.replay


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_and_eager_agree_in_logits_and_gradients() -> None:
    results = []
    for compiled in (True, False):
        model = build()
        assert not compiled or compile_model(model, CLASSIFY, BATCH, FP32)
        logits = model(BATCH[0])
        loss = nn.functional.cross_entropy(logits, BATCH[1])
        results.append((logits, *torch.autograd.grad(loss, list(model.parameters()))))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
