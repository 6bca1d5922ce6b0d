"""The device that a setting names, and what a user with an unusable GPU is told."""

import logging
from pathlib import Path

import pytest
import torch

from vit_train.loop import device as module
from vit_train.loop.device import pick_device


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of an NVIDIA driver that is not there yet; PyTorch finds no GPU."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(module, "DRIVER", tmp_path / "version")
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    return tmp_path / "version"


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The current GPU of two of capability 9.0, once one was chosen."""
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Card")
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_90"])
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    return current


def test_auto_is_the_gpu(gpus: list[torch.device]) -> None:
    assert pick_device("auto").type == "cuda"
    assert pick_device("cpu").type == "cpu"


def test_one_of_several_gpus_is_chosen_by_its_number(gpus: list[torch.device]) -> None:
    assert [pick_device("cuda:1")] == gpus == [torch.device("cuda", 1)]
    with pytest.raises(ValueError, match="device=cuda:2, but PyTorch finds 2 CUDA GPUs on this"):
        pick_device("cuda:2")


def test_without_a_driver_auto_is_the_cpu_in_silence(
    driver: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert pick_device("auto").type == "cpu"
    assert not caplog.records


def old_driver() -> None:
    raise RuntimeError("The NVIDIA driver on your system is too old (found version 12020).")


@pytest.mark.parametrize("cuda", ["13.0", None])
def test_a_gpu_that_pytorch_cannot_use_is_reported_with_its_remedy(
    driver: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    cuda: str | None,
) -> None:
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104", encoding="utf-8")
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "init", old_driver)
    expected = "driver on your system is too old" if cuda else "was installed without CUDA"
    with caplog.at_level(logging.WARNING):
        assert pick_device("auto").type == "cpu"
    assert expected in caplog.text and "whl/cu126" in caplog.text
    with pytest.raises(ValueError, match=expected):
        pick_device("cuda")
    caplog.clear()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hidden on purpose
    assert pick_device("auto").type == "cpu"
    assert not caplog.records


@pytest.mark.parametrize(
    ("own", "built", "runs"),
    [
        ((7, 0), "sm_75 sm_80 sm_90 compute_120", False),  # V100 with CUDA 13
        ((8, 9), "sm_75 sm_80 sm_90", True),
        ((7, 5), "sm_80 sm_90", False),
        ((9, 0), "sm_90a", True),
        ((12, 1), "sm_90 sm_120", True),
        ((12, 0), "sm_80 compute_90", True),
        ((12, 0), "sm_80 sm_90", False),
        ((10, 3), "sm_100", True),
    ],
)
def test_a_gpu_needs_code_for_its_architecture(
    gpus: list[torch.device],
    monkeypatch: pytest.MonkeyPatch,
    own: tuple[int, int],
    built: str,
    runs: bool,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: own)
    monkeypatch.setattr(torch.cuda, "get_arch_list", built.split)
    if runs:
        assert pick_device("auto").type == "cuda"
    else:
        with pytest.raises(ValueError, match=r"does not support this GPU \(Card, capability"):
            pick_device("auto")
