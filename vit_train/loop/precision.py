"""The number format of matrix products."""

import ctypes
import math
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial

import torch
from torch import Tensor, nn

# The value when PyTorch was loaded: OMP_NUM_THREADS, or the number of this machine's cores.
CORES = torch.get_num_threads()


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


def batch_norms(model: nn.Module) -> list[nn.Module]:
    """Return all BatchNorm layers; a model with such layers must process whole batches."""
    return [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def statistics_of(model: nn.Module) -> list[Tensor]:
    """Return the running statistics of all BatchNorm layers."""
    return [statistic for norm in batch_norms(model) for statistic in norm.buffers()]


# Smaller gains do not justify bf16's rounding, and casts and other operations use up a part of
# them.
LEAST_SPEEDUP = 1.2
# The timed product has as many rows as a micro-batch has tokens. For wide matrices, it has fewer
# rows, to limit the number of multiplications, which could take seconds where bf16 is emulated.
ROWS = 1024
FEWEST_ROWS = 64
WIDEST = 1024
MULTIPLICATIONS = 2**24
SECONDS = 0.1
FEWEST_ROUNDS = 3


def pick_precision(name: str, device: torch.device, model: nn.Module) -> Precision:
    """Return the precision called `name`, and turn PyTorch's use of TF32 on or off to match.

    `name` is fp32, tf32, bf16, fp16 or auto. "auto" selects the fastest of bf16, fp16 and fp32 for
    this model on this device. PyTorch uses TF32 only for the precision tf32. Raise ValueError for a
    precision that the device does not support.
    """
    name = fastest(device, model) if name == "auto" else name
    require_precision(name, device)
    # PyTorch's defaults differ: convolutions may use TF32, matrix products may not.
    torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = name == "tf32"
    return Precision(name, device)


def fastest(device: torch.device, model: nn.Module) -> str:
    """Return the name of the precision in which the model trains fastest: bf16, fp16 or fp32."""
    if device.type == "cpu":
        return "bf16" if bf16_speedup(model) >= LEAST_SPEEDUP else "fp32"
    if computes_in_bf16(device):
        return "bf16"
    # Volta and Turing (V100, T4) have tensor cores only for fp16; older GPUs have none.
    return "fp16" if torch.cuda.get_device_capability(device) >= (7, 0) else "fp32"


def require_precision(name: str, device: torch.device) -> None:
    """Raise ValueError if the device does not support the named precision."""
    if name in ("fp16", "tf32") and device.type != "cuda":
        raise ValueError(f"precision={name} needs a CUDA GPU: use precision=fp32 or precision=bf16")


def bf16_speedup(model: nn.Module) -> float:
    """Return the speedup of bf16 over fp32 on this CPU, for the largest linear layer of a model.

    The speedup is measured once per process, with as many threads as a worker has. The CPU's
    instruction set does not predict the speedup: with AVX512_BF16, products take half the time on
    some CPUs and twice the time on others.
    """
    layers = (m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d))
    sides = max((layer.weight.flatten(1).shape for layer in layers), key=math.prod, default=(1, 1))
    return product_speedup(*sides, threads=CORES if batch_norms(model) else 1)


@cache
def product_speedup(outputs: int, inputs: int, threads: int) -> float:
    """Return the speedup of bf16 over fp32 in the products of a linear layer.

    The two precisions are timed alternately, for a tenth of a second in all. The shortest time of
    each counts, because other programs slow down only some of the products.
    """
    outputs = min(outputs, WIDEST)
    inputs = min(inputs, WIDEST)
    rows = max(FEWEST_ROWS, min(ROWS, MULTIPLICATIONS // (outputs * inputs)))
    factors = torch.ones(rows, inputs), torch.ones(outputs, inputs)
    best = {torch.float32: math.inf, torch.bfloat16: math.inf}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rounds = 0
        end = time.perf_counter() + SECONDS
        while rounds < FEWEST_ROUNDS or time.perf_counter() < end:
            for dtype in best:
                best[dtype] = min(best[dtype], seconds_of(*(each.to(dtype) for each in factors)))
            rounds += 1
    finally:
        torch.set_num_threads(before)
    return best[torch.float32] / best[torch.bfloat16]


def seconds_of(x: Tensor, weight: Tensor) -> float:
    """Time the forward and backward products of a linear layer, for x (R,I) and weight (O,I)."""
    began = time.perf_counter()
    y = x @ weight.T
    _ = y @ weight, y.T @ x
    return time.perf_counter() - began
