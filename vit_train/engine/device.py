"""The machine: which device, which precision, and an allocator that keeps its memory."""

import contextlib
import ctypes
import os
import sys
from dataclasses import dataclass

import torch


def pick_device(name: str) -> torch.device:
    """The device called auto, cpu, cuda or mps; ValueError if this machine has none such."""
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return torch.device(next(kind for kind, present in available.items() if present))
    if not available[name]:
        raise ValueError(
            f"device={name}, but PyTorch sees none here: use device=cpu or device=auto"
        )
    return torch.device(name)


@dataclass(frozen=True)
class Precision:
    """The number format of the matrix products; weights and the residual stream stay float32."""

    name: str
    device: torch.device

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
        if self.name == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtypes[self.name])

    def scaler(self) -> torch.amp.GradScaler:
        """fp16 gradients underflow unless the loss is scaled; for the others this does nothing."""
        return torch.amp.GradScaler(self.device.type, enabled=self.name == "fp16")


def pick_precision(name: str, device: torch.device) -> Precision:
    """auto is bf16 on a GPU that has it and fp32 elsewhere (on most CPUs bf16 is slower)."""
    if name == "auto":
        fast = device.type == "cuda" and torch.cuda.is_bf16_supported()
        return Precision("bf16" if fast else "fp32", device)
    if name == "fp16" and device.type == "cpu":
        raise ValueError("precision=fp16 needs a GPU: use precision=fp32 or precision=bf16 here")
    return Precision(name, device)


def be_deterministic() -> None:
    """The same bits on every run, on a GPU too, at some cost in speed; a CPU needs nothing."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory for the next step instead of returning it to the system.

    By default the activations' memory goes back after every step and costs some 50,000 page
    faults to get again: 7–20 % of the time at 32×32, and more than half of it at 96×96.
    Elsewhere than on glibc this does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return
    m_trim_threshold, m_mmap_max = -1, -4  # <malloc.h>
    libc.mallopt(m_mmap_max, 0)
    libc.mallopt(m_trim_threshold, 2**31 - 1)
