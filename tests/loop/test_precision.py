"""The device and the precision, and the measurement that the choice rests on."""

import math
from collections.abc import Callable
from threading import Thread

import pytest
import torch
from conftest import PRODUCT_SPEEDUP
from torch import nn

from vit_train.config.model import CnnConfig, ViTConfig
from vit_train.loop import precision as module
from vit_train.loop.precision import (
    Precision,
    bf16_speedup,
    pick_precision,
)
from vit_train.model.build import build

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
WIDE = build(ViTConfig(embed_dim=48, depth=1), (3, 32, 32), 10)


@pytest.mark.parametrize("speedup, name", [(0.52, "fp32"), (1.19, "fp32"), (1.2, "bf16")])
def test_auto_is_bf16_where_a_cpu_multiplies_faster_in_it(
    monkeypatch: pytest.MonkeyPatch, speedup: float, name: str
) -> None:
    monkeypatch.setattr(module, "product_speedup", lambda *sides, threads: speedup)
    assert pick_precision("auto", CPU, WIDE) == Precision(name, CPU)


def test_the_largest_product_is_measured_in_the_threads_of_a_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CORES", 7)
    asked = []
    speedup = lambda *sides, threads: asked.append((*sides, threads)) or 2.0  # noqa: E731
    monkeypatch.setattr(module, "product_speedup", speedup)
    bf16_speedup(WIDE)
    bf16_speedup(build(CnnConfig(widths=[4, 8]), (3, 32, 32), 10))  # whole batches, in all threads
    bf16_speedup(nn.ReLU())  # a model of one's own, without products
    assert asked == [(192, 48, 1), (8, 36, 7), (1, 1, 1)]


def test_the_fastest_of_many_turns_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program makes most of them slower, and one kind more than the other."""
    turns = {torch.float32: [9.0, 2.0, 5.0], torch.bfloat16: [40.0, 30.0, 4.0]}
    order = []

    def seconds_of(x: torch.Tensor, weight: torch.Tensor) -> float:
        assert torch.get_num_threads() == 1 and x.dtype == weight.dtype
        order.append(x.dtype)
        return turns[x.dtype].pop(0)

    monkeypatch.setattr(module, "SECONDS", 0)
    monkeypatch.setattr(module, "seconds_of", seconds_of)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert PRODUCT_SPEEDUP.__wrapped__(192, 48, threads=1) == 0.5
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert order == [torch.float32, torch.bfloat16] * 3


@pytest.mark.parametrize("sides", [(1, 1), (512, 128), (2**20, 2**20)])
def test_products_are_measured_of_any_size(
    monkeypatch: pytest.MonkeyPatch, sides: tuple[int, int]
) -> None:
    """The random draws of the run stay as they are, and huge layers take little memory."""
    monkeypatch.setattr(module, "SECONDS", 0)
    torch.manual_seed(3)
    draws = torch.get_rng_state()
    with torch.inference_mode():
        assert 0 < PRODUCT_SPEEDUP.__wrapped__(*sides, threads=1) < math.inf
    assert torch.equal(torch.get_rng_state(), draws)


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


@pytest.mark.parametrize("name, dtype", [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_matrix_products_have_the_precision_that_is_asked_for(
    name: str, dtype: torch.dtype
) -> None:
    precision = Precision(name, CPU)
    with precision.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


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
