"""The device, its number formats, and a memory allocator that keeps its memory."""

import contextlib
import ctypes
import os
import sys
from dataclasses import dataclass

import torch
from torch import nn

# As set when PyTorch was loaded: OMP_NUM_THREADS, or the number of cores of this machine.
CORES = torch.get_num_threads()


def pick_device(name: str) -> torch.device:
    """Return the device named auto, cpu or cuda; raise ValueError if it is not available."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "device=cuda, but PyTorch finds no GPU here: use device=cpu or device=auto"
        )
    if name == "cuda":
        # Without it no product is deterministic. It is read once, at the process's first product.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # With 64 keys the gradient of cuDNN's attention may be NaN (pytorch/pytorch#196678).
        torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device(name)


@dataclass(frozen=True)
class Precision:
    """The number format of the matrix products; weights and a ViT's residual stream stay float32.

    tf32 rounds the factors of float32 products to 10 bits of mantissa; fp32 does not.
    """

    name: str
    device: torch.device

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        if self.dtype == torch.float32:
            return contextlib.nullcontext()
        # All threads share the cache, and each empties it: then a weight that is used twice may
        # get its gradient's halves added in another precision.
        cached = self.device.type != "cpu"
        return torch.autocast(self.device.type, self.dtype, cache_enabled=cached)

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of the products' factors."""
        return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.name, torch.float32)

    def scaler(self) -> torch.amp.GradScaler:
        """Return a loss scaler for fp16, whose gradients underflow; for others it does nothing."""
        return torch.amp.GradScaler(self.device.type, enabled=self.name == "fp16")


def choose_algorithms(deterministic: bool) -> None:
    """Choose PyTorch's algorithms for training on a GPU.

    If they are deterministic, every run computes the same bits, at some cost in speed.
    """
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory for the next step instead of returning it to the system.

    By default the activations' memory is returned after every step, and getting it back costs some
    50,000 page faults: 7–20 % of the time at 32×32, up to 39 % at 96×96. Without glibc
    this function does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        return
    m_trim_threshold, m_mmap_max = -1, -4  # <malloc.h>
    libc.mallopt(m_mmap_max, 0)
    libc.mallopt(m_trim_threshold, 2**31 - 1)


def batch_norms(model: nn.Module) -> list[nn.Module]:
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def has_batch_norm(model: nn.Module) -> bool:
    """Say whether an image's result depends on the other images, so a batch cannot be split."""
    return bool(batch_norms(model))
