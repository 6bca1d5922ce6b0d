import pytest
import torch

from vit_train.engine.device import Precision, pick_device, pick_precision

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
