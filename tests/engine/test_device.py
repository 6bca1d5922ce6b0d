from collections.abc import Callable
from threading import Thread

import pytest
import torch

from vit_train.engine.precision import Precision, pick_device

CPU = torch.device("cpu")


@pytest.mark.parametrize("cuda", [True, False])
def test_auto_is_the_fastest_device_there_is(monkeypatch: pytest.MonkeyPatch, cuda: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    assert pick_device("auto").type == ("cuda" if cuda else "cpu")
    assert pick_device("cpu").type == "cpu"
    if not cuda:
        with pytest.raises(ValueError, match="device=cuda"):
            pick_device("cuda")


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
