"""The device and the precision, and the measurement that the choice rests on."""

import math
from collections.abc import Callable
from threading import Thread

import pytest
import torch
from conftest import IMAGE_SECONDS, measured
from torch import nn

from vit_train.config.model import ModelConfig, ResNetConfig, ViTConfig
from vit_train.loop import device as module
from vit_train.loop.device import (
    Precision,
    pick_precision,
)
from vit_train.model.build import build

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
WIDE = build(ViTConfig(embed_dim=48, depth=1), (3, 32, 32), 10)


@pytest.mark.parametrize("speedup, name", [(0.52, "fp32"), (1.04, "fp32"), (1.05, "bf16")])
def test_auto_is_bf16_where_the_model_is_faster_in_it(
    monkeypatch: pytest.MonkeyPatch, speedup: float, name: str
) -> None:
    monkeypatch.setattr(module, "image_seconds", lambda model, inputs: measured(speedup))
    found = pick_precision("auto", CPU, nn.ReLU())
    assert found == Precision(name, CPU) and found.bf16_speedup == speedup


def test_the_speedup_of_a_model_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.ReLU()
    for found in map(measured, (1.5, 0.5)):
        monkeypatch.setattr(module, "image_seconds", lambda model, inputs, own=found: own)
        assert pick_precision("auto", CPU, model).name == "bf16"
    assert pick_precision("auto", CPU, nn.ReLU()).name == "fp32"


def test_the_fastest_of_many_turns_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program makes some of them slower, and one kind more than the other."""
    turns = {"fp32": [9.0, 2.0, 5.0], "bf16": [40.0, 30.0, 4.0]}
    monkeypatch.setattr(module, "FEWEST_ROUNDS", 3)
    found = module.fastest_of_turns(lambda name: turns[name].pop(0), 0)
    assert found == {"fp32": 2.0, "bf16": 4.0}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "config",
    [ViTConfig(embed_dim=48, depth=1, dropout=0.5), ResNetConfig(widths=[4, 8])],
    ids=["ViT", "BatchNorm"],
)
def test_a_measurement_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, config: ModelConfig, training: bool
) -> None:
    monkeypatch.setattr(module, "SECONDS", 0)
    model = build(config, (3, 32, 32), 10).train(training)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    draws = torch.get_rng_state()
    threads = torch.get_num_threads()
    found = IMAGE_SECONDS(model, (torch.zeros(1, 3, 32, 32),))
    assert all(0 < found[name] < math.inf for name in ("fp32", "bf16"))
    assert model.training == training and torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), draws)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_cpu_that_cannot_compute_a_model_in_bf16_uses_fp32() -> None:
    class Fails(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.is_autocast_enabled("cpu"):
                raise RuntimeError("could not create a primitive")
            return super().forward(x)

    assert IMAGE_SECONDS(Fails(4, 4), (torch.zeros(1, 4),)) == {}


def test_only_tf32_allows_tf32() -> None:
    try:
        for name in ("tf32", "fp32"):
            assert pick_precision(name, CUDA, WIDE).name == name
            allowed = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
            assert allowed == (name == "tf32",) * 2
    finally:
        pick_precision("fp32", CUDA, WIDE)


@pytest.mark.parametrize(
    "bf16, capability, name",
    [(True, (9, 0), "bf16"), (False, (7, 5), "fp16"), (False, (6, 1), "fp32")],
    ids=["H100", "T4", "P100"],
)
def test_auto_is_the_fastest_precision_of_a_gpu(
    monkeypatch: pytest.MonkeyPatch, bf16: bool, capability: tuple[int, int], name: str
) -> None:
    """Muon's products are in bf16 only where the GPU computes it, and fp32 was not asked for."""
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation: bf16 or including_emulation
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert pick_precision("auto", CUDA, WIDE).name == name
    assert Precision(name, CUDA).allows_bf16 == bf16
    assert not Precision("fp32", CUDA).allows_bf16 and Precision("bf16", CPU).allows_bf16


def test_a_gradient_does_not_depend_on_what_other_threads_do() -> None:
    """A weight that is used twice, while another thread begins and ends its own autocast."""
    x, weight = torch.randn(50, 8), torch.randn(9, 8)

    def gradient(between: Callable[[], object]) -> torch.Tensor:
        leaf = weight.clone().requires_grad_()
        with Precision("bf16", CPU).autocast():
            first = torch.nn.functional.linear(x, leaf).sum()
            between()
            (first + torch.nn.functional.linear(x, leaf).square().sum()).backward()
        assert leaf.grad is not None
        return leaf.grad

    def other_thread() -> None:
        thread = Thread(target=gradient, args=(lambda: None,))
        thread.start()
        thread.join()

    assert torch.equal(gradient(lambda: None), gradient(other_thread))
