"""Linear layers by oneDNN equal those by PyTorch; a CPU's maker and family choose between them."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from vit_train.base import machine
from vit_train.model import products


@pytest.fixture(params=["MKL", "oneDNN"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "uses_onednn", lambda: request.param == "oneDNN")


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("shape", [(7, 12), (3, 5, 12), (2, 3, 5, 12), (0, 5, 12), (3, 0, 12)])
def test_a_linear_layer_and_its_gradients_are_those_in_float64(
    shape: tuple[int, ...], has_bias: bool
) -> None:
    x = torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2].requires_grad_()  # not contiguous
    weight = torch.randn(20, 12, requires_grad=True)
    leaves = [x, weight, *([torch.randn(20, requires_grad=True)] if has_bias else [])]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    result = products.linear(*leaves)
    expected = F.linear(*exact)
    grad = torch.randn(expected.shape)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5, check_dtype=False)
    for leaf, other in zip(
        torch.autograd.grad(result, leaves, grad),
        torch.autograd.grad(expected, exact, grad.double()),
        strict=True,
    ):
        torch.testing.assert_close(leaf, other, rtol=1e-5, atol=1e-5, check_dtype=False)


LINUX = "processor\t: 0\nvendor_id\t: {}\ncpu family\t: {}\nmodel\t\t: 17\n"
WINDOWS = "AMD64 Family {1} Model 2 Stepping 1, {0}"


@pytest.mark.parametrize("text", [LINUX, WINDOWS])
@pytest.mark.parametrize(
    ("maker", "family", "capability", "expected"),
    [
        ("AuthenticAMD", 26, "AVX512", True),  # Zen 5
        ("AuthenticAMD", 25, "AVX512", False),  # Zen 4
        ("AuthenticAMD", 26, "AVX2", False),
        ("GenuineIntel", 30, "AVX512", False),
        ("ARM", 8, "DEFAULT", False),
    ],
)
def test_the_library_follows_from_the_cpu(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    maker: str,
    family: int,
    capability: str,
    expected: bool,
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    described = text.format(maker, family)
    if text == LINUX:
        cpuinfo.write_text(described, encoding="utf-8")
    monkeypatch.setattr(machine, "CPUINFO", cpuinfo)
    monkeypatch.setattr(machine.platform, "processor", lambda: described)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert products.uses_onednn.__wrapped__() == expected
