import pytest
import torch

from vit_train.engine.device import Precision, pick_device, pick_precision

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    "cuda, mps, picked", [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")]
)
def test_auto_is_the_fastest_device_there_is(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, picked: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert pick_device("auto").type == picked and pick_device("cpu").type == "cpu"
    if not mps:
        with pytest.raises(ValueError, match="device=mps"):
            pick_device("mps")


def test_auto_precision_is_bf16_where_a_gpu_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for supported, name in ((True, "bf16"), (False, "fp32")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda has=supported: has)
        assert pick_precision("auto", CUDA) == Precision(name, CUDA)
        assert pick_precision("auto", CPU) == Precision("fp32", CPU)
    assert pick_precision("fp16", CUDA).name == "fp16"
    assert pick_precision("bf16", CPU).name == "bf16"


@pytest.mark.parametrize("name, dtype", [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_matrix_products_have_the_precision_that_is_asked_for(
    name: str, dtype: torch.dtype
) -> None:
    precision = Precision(name, CPU)
    with precision.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype
    assert not precision.scaler().is_enabled()
