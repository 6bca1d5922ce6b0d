"""The device to compute on, and the number format of its matrix products."""

import ctypes
import math
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vit_train.base.log import logger
from vit_train.base.text import counted, reason

# The value when PyTorch was loaded: OMP_NUM_THREADS, or the number of this machine's cores.
CORES = torch.get_num_threads()
CPU = torch.device("cpu")
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
        libc = ctypes.CDLL(None)
        libc.mallopt(-4, 0)  # M_MMAP_MAX in <malloc.h>
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


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


def computes_in_bf16(device: torch.device) -> bool:
    """Return True for a CUDA GPU that computes bf16 products natively, and for every CPU."""
    return device.type == "cpu" or torch.cuda.is_bf16_supported(including_emulation=False)


@dataclass(frozen=True)
class Precision:
    """The number format of the matrix products; weights and a ViT's residual stream stay float32.

    tf32 rounds the factors of float32 products to 10 bits of mantissa; fp32 does not.
    """

    name: str
    device: torch.device
    # On a CPU, if they were measured: the speedup of bf16 over fp32, and the seconds that one core
    # takes for the forward and backward pass of one image.
    bf16_speedup: float | None = field(default=None, compare=False)
    image_seconds: float | None = field(default=None, compare=False)

    @property
    def allows_bf16(self) -> bool:
        """Return True if the precision is bf16 or fp16 and the device computes in bf16."""
        return self.name in ("bf16", "fp16") and computes_in_bf16(self.device)

    @cached_property
    def autocast(self) -> Callable[[], torch.autocast]:
        """Return a function that makes a context: within it, PyTorch uses this number format."""
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.name)
        # Threads share the cache, and each empties it: a weight that is used twice might then get
        # the two parts of its gradient in different precisions.
        cached = self.device.type != "cpu"
        return partial(torch.autocast, self.device.type, dtype, dtype is not None, cached)


def trained_weights(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def batch_norms(model: nn.Module) -> list[nn.Module]:
    """Return all BatchNorm layers; a model with such layers must process whole batches."""
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


# Smaller gains do not justify bf16's rounding.
LEAST_SPEEDUP = 1.05
# The seconds for one pass, which limit the number of images, and the seconds for all passes.
PASS_SECONDS = 0.15
SECONDS = 0.3
FEWEST_ROUNDS = 2
MOST_IMAGES = 16
# What this process has measured: the seconds for one image, by precision.
MEASURED: WeakKeyDictionary[nn.Module, dict[str, float]] = WeakKeyDictionary()


def pick_precision(
    name: str, device: torch.device, model: nn.Module, inputs: tuple[Tensor, ...] = ()
) -> Precision:
    """Return the precision called `name`, and turn PyTorch's use of TF32 on or off to match.

    `name` is fp32, tf32, bf16, fp16 or auto. "auto" selects the fastest of bf16, fp16 and fp32 for
    this model on this device; `inputs` are then the model's inputs for one image. PyTorch uses TF32
    only for the precision tf32. Raise ValueError for a precision that the device does not support.
    """
    speedup = None
    seconds = None
    if name == "auto" and device.type == "cpu":
        if model not in MEASURED:
            MEASURED[model] = image_seconds(model, inputs)
        measured = MEASURED[model]
        speedup = measured["fp32"] / measured["bf16"] if measured else 0.0
        name = "bf16" if speedup >= LEAST_SPEEDUP else "fp32"
        seconds = measured.get(name)
    elif name == "auto":
        name = fastest(device)
    require_precision(name, device)
    # PyTorch's defaults differ: convolutions may use TF32, matrix products may not.
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = name == "tf32"
    return Precision(name, device, speedup, seconds)


def fastest(device: torch.device) -> str:
    """Return the name of the precision in which a GPU computes fastest: bf16, fp16 or fp32."""
    if computes_in_bf16(device):
        return "bf16"
    # Volta and Turing (V100, T4) have tensor cores only for fp16; older GPUs have none.
    return "fp16" if torch.cuda.get_device_capability(device) >= (7, 0) else "fp32"


def require_precision(name: str, device: torch.device) -> None:
    """Raise ValueError if the device does not support the named precision."""
    if name in ("fp16", "tf32") and device.type != "cuda":
        raise ValueError(f"precision={name} needs a CUDA GPU: use precision=fp32 or precision=bf16")


def image_seconds(model: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, float]:
    """Return the seconds of one core for one image, in fp32 and in bf16, by name; {} if bf16 fails.

    `inputs` are the model's inputs for one image. A micro-batch of copies is timed: forward and
    backward, or forward alone for a model in eval mode. The instruction set does not predict the
    speedup: with AVX512_BF16, bf16 takes half the time on some CPUs and twice the time on others.

    Other programs may slow down some of the passes, so the two precisions take turns, and only the
    time of the one thread that computes counts. The weights and the random generator stay as they
    are.
    """
    # Windows counts the time of a thread in steps of 16 ms.
    clock = time.perf_counter if sys.platform == "win32" else time.thread_time
    is_training = model.training
    parameters = trained_weights(model) if is_training else []

    def seconds(name: str, images: int) -> float:
        batch = [each.repeat(images, *[1] * (each.ndim - 1)) for each in inputs]
        began = clock()
        with torch.set_grad_enabled(is_training), Precision(name, CPU).autocast():
            loss = model(*batch).float().sum()
        if parameters:
            torch.autograd.grad(loss, parameters, allow_unused=True)
        return clock() - began

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            model.eval()  # keeps the statistics of BatchNorm
            one = min(seconds("fp32", 1) for _ in range(2))
            images = max(1, min(MOST_IMAGES, int(PASS_SECONDS / one)))
            # A command that only predicts may end sooner than a longer measurement.
            budget = SECONDS if is_training else SECONDS / 3
            best = fastest_of_turns(lambda name: seconds(name, images), budget)
            return {name: each / images for name, each in best.items()}
    except RuntimeError:  # PyTorch lacks some bf16 convolutions on some CPUs
        return {}
    finally:
        model.train(is_training)
        torch.set_num_threads(threads)


def fastest_of_turns(seconds: Callable[[str], float], budget: float) -> dict[str, float]:
    """Return the shortest time of one pass in fp32 and in bf16, by name.

    `seconds` times one pass in the precision with this name. The two precisions take turns until
    all passes together have taken `budget` seconds.
    """
    best = {"fp32": math.inf, "bf16": math.inf}
    rounds = 0
    spent = 0.0
    while rounds < FEWEST_ROUNDS or spent < budget:
        for name in best:
            found = seconds(name)
            best[name] = min(best[name], found)
            spent += found
        rounds += 1
    return best
