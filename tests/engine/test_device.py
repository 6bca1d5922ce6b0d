from collections.abc import Callable
from threading import Thread

import pytest
import torch

from vit_train.engine import device
from vit_train.engine.device import CPU_BF16, Precision, pick_device, pick_precision

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("cuda", [True, False])
def test_auto_is_the_fastest_device_there_is(monkeypatch: pytest.MonkeyPatch, cuda: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    assert pick_device("auto").type == ("cuda" if cuda else "cpu")
    assert pick_device("cpu").type == "cpu"
    if not cuda:
        with pytest.raises(ValueError, match="device=cuda"):
            pick_device("cuda")


def test_auto_precision_is_bf16_where_a_gpu_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for supported, name in ((True, "bf16"), (False, "fp32")):

        def computes_in_it(including_emulation: bool, supported: bool = supported) -> bool:
            return supported or including_emulation

        monkeypatch.setattr(torch.cuda, "is_bf16_supported", computes_in_it)
        assert pick_precision("auto", CUDA) == Precision(name, CUDA)
        assert pick_precision("auto", CPU) == Precision("fp32", CPU)
    assert pick_precision("fp16", CUDA).name == "fp16"
    assert pick_precision("bf16", CPU).name == "bf16"


@pytest.mark.parametrize(
    "capabilities, name",
    [
        ({"avx512_bf16": True, "amx_bf16": False}, "bf16"),
        ({"avx512_bf16": False, "amx_bf16": True}, "bf16"),
        ({"avx512_f": True, "avx512_bf16": False, "l2_cache_size": 1}, "fp32"),
        (None, "fp32"),  # as older versions of PyTorch
    ],
)
def test_auto_precision_is_bf16_where_a_cpu_has_it(
    monkeypatch: pytest.MonkeyPatch, capabilities: dict[str, object] | None, name: str
) -> None:
    monkeypatch.setattr(device, "CPU_BF16", CPU_BF16)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    if capabilities is None:
        monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert pick_precision("auto", CPU) == Precision(name, CPU)


def test_fp32_is_fp32_in_products_and_convolutions_and_tf32_is_asked_for() -> None:
    try:
        for name in ("tf32", "fp32"):
            assert pick_precision(name, CUDA).name == name
            allowed = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
            assert allowed == (name == "tf32",) * 2
    finally:
        pick_precision("fp32", CUDA)
    with pytest.raises(ValueError, match="precision=tf32 needs an NVIDIA GPU"):
        pick_precision("tf32", CPU)


@pytest.mark.parametrize("name, dtype", [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_matrix_products_have_the_precision_that_is_asked_for(
    name: str, dtype: torch.dtype
) -> None:
    precision = Precision(name, CPU)
    with precision.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype
    assert not precision.scaler().is_enabled()


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
