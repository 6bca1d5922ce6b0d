"""The device to compute on: its choice, algorithms and memory, and why a GPU cannot be used."""

import ctypes
import os
import platform
import re
import shutil
from pathlib import Path

import torch

from vit_train.base.log import logger
from vit_train.base.text import counted, reason

DRIVER = Path("/proc/driver/nvidia/version")
OLDER_CUDA = (
    "install PyTorch for an older CUDA: pip install --force-reinstall torch torchvision "
    "--index-url https://download.pytorch.org/whl/cu126"
)


def choose_algorithms(deterministic: bool) -> None:
    """Turn PyTorch's deterministic algorithms on or off.

    On a GPU, deterministic algorithms compute the same bits in every run, at some cost in speed.
    """
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory for the next step instead of returning it to the system.

    By default, glibc returns the activations' memory after every step. Getting the memory back
    causes some 50,000 page faults: 7–20 % of the training time for images of 32×32, up to 39 % for
    96×96. On systems without glibc, do nothing.
    """
    if platform.libc_ver()[0] == "glibc":
        libc, (m_trim_threshold, m_mmap_max) = ctypes.CDLL(None), (-1, -4)  # <malloc.h>
        libc.mallopt(m_mmap_max, 0)
        libc.mallopt(m_trim_threshold, 2**31 - 1)


def pick_device(name: str) -> torch.device:
    """Return the device called `name`; raise ValueError if PyTorch cannot use it on this machine.

    "auto" means a CUDA GPU or, if there is none, the CPU. Warn if there is a GPU that PyTorch
    cannot use.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
        if name == "cpu" and (problem := unusable_gpu()):
            logger.warning(f"using the CPU, although this machine has an NVIDIA GPU: {problem}")
    device = torch.device(name)
    if device.type != "cuda":
        return device
    if torch.cuda.device_count() <= (device.index or 0):
        problem = unusable_gpu() or "use device=cpu or device=auto"
        raise ValueError(
            f"device={name}, but PyTorch finds {counted(torch.cuda.device_count(), 'CUDA GPU')} "
            f"on this machine: {problem}"
        )
    require_kernels(device)
    if device.index is not None:
        torch.cuda.set_device(device)
    # cuBLAS is deterministic only with this variable, which it reads at its first product.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # With 64 keys the gradient of cuDNN's attention may be NaN (pytorch/pytorch#196678).
    torch.backends.cuda.enable_cudnn_sdp(False)
    return device


def unusable_gpu() -> str:
    """Return why PyTorch finds no GPU although the machine has one, and what helps; else ""."""
    is_hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if is_hidden or not (DRIVER.exists() or shutil.which("nvidia-smi")):
        return ""
    if torch.version.cuda is None:
        return (
            f"PyTorch {torch.__version__} was installed without CUDA. To use the GPU, {OLDER_CUDA}"
        )
    try:
        torch.cuda.init()
    except RuntimeError as error:
        return (
            f"PyTorch {torch.__version__}, made for CUDA {torch.version.cuda}, cannot use it "
            f"({reason(error)}). Update the NVIDIA driver, or {OLDER_CUDA}"
        )
    return ""


def require_kernels(device: torch.device) -> None:
    """Raise ValueError if PyTorch was built without code for the architecture of this GPU.

    Code for "sm_80" runs on GPUs of capability 8.0 to 8.9. Code for "compute_90" is compiled at
    run time for any capability from 9.0 on.
    """
    own = torch.cuda.get_device_capability(device)
    built = torch.cuda.get_arch_list()
    for kind, major, minor in re.findall(r"(sm|compute)_(\d+)(\d)", " ".join(built)):
        architecture = (int(major), int(minor))
        if architecture <= own and (kind == "compute" or architecture[0] == own[0]):
            return
    if built:
        name = torch.cuda.get_device_name(device)
        raise ValueError(
            f"PyTorch {torch.__version__} does not support this GPU ({name}, capability "
            f"{own[0]}.{own[1]}), only {', '.join(built)}: use device=cpu, or {OLDER_CUDA}"
        )
