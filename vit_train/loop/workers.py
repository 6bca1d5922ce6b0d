"""Worker threads that process the micro-batches of a batch."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import repeat, starmap
from typing import TypeVar

import torch
from torch import Tensor, nn

from vit_train.loop.device import CORES, Precision, batch_norms

# Images per micro-batch on a CPU: few enough for the activations to stay in the cache, and enough
# for the arithmetic to outweigh Python's overhead (measured with 1.2 to 4.8 M parameters and 65 and
# 145 tokens). In bf16, matrix units are so fast that larger micro-batches pay (measured with AMX:
# 64 are 1.2 times as fast as 32).
CPU_MICRO_BATCH = 16
CPU_MICRO_BATCH_BF16 = 64

Result = TypeVar("Result")


def has_dropout(model: nn.Module, rate: str) -> bool:
    """Return True if any module has a nonzero dropout rate.

    `rate` is the name of the modules' attribute: "rate" in this package, "p" in PyTorch.
    """
    rates = (getattr(module, rate, 0) for module in model.modules())
    return any(each for each in rates if isinstance(each, int | float))


class Workers:
    """Worker threads that process micro-batches; each thread has an equal share of the CPU cores.

    By default, PyTorch spreads every operation over all cores and waits for the slowest core, some
    300 times per step. Workers, which synchronize once per step, are faster and suffer far less
    from other programs that use a core. Results come in the order of the images, so that sums of
    results never vary.
    """

    def __init__(self, micro_batch: int | None = None, count: int = 1) -> None:
        self.micro_batch = micro_batch
        self.count = count
        self.pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> "Workers":
        if self.count > 1:
            self.before = torch.get_num_threads()
            share = max(1, CORES // self.count)
            torch.set_num_threads(share)
            self.pool = ThreadPoolExecutor(
                self.count, "worker", initializer=torch.set_num_threads, initargs=(share,)
            )
        return self

    def __exit__(self, *error: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)
            self.pool = None
            torch.set_num_threads(self.before)

    def map(self, function: Callable[..., Result], *batch: Tensor) -> Iterator[Result]:
        """Split the batch's tensors by rows, and yield function(*micro_batch) in order.

        Only a few results are held at a time. The function must set thread-local modes (no_grad,
        autocast) itself. Raise ValueError if the function draws from PyTorch's random generator,
        which all threads share.
        """
        size = self.micro_batch or len(batch[0])
        micro_batches = zip(*map(torch.split, batch, repeat(size)), strict=True)
        if self.pool is None:
            yield from starmap(function, micro_batches)
            return
        state = torch.get_rng_state()
        pending: deque[Future[Result]] = deque()
        for micro_batch in micro_batches:
            pending.append(self.pool.submit(function, *micro_batch))
            if len(pending) > 2 * self.count:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
        if not torch.equal(state, torch.get_rng_state()):
            raise ValueError(
                "the model draws from PyTorch's random generator in several threads, so "
                "results would differ between runs with the same seed: in the model, use "
                "vit_train.base.rng.bernoulli instead, or set OMP_NUM_THREADS=1"
            )

    def each(self, function: Callable[[Tensor], Result], parts: Iterable[Tensor]) -> list[Result]:
        """Return [function(part) for part in parts], computed in parallel."""
        return list(map(function, parts) if self.pool is None else self.pool.map(function, parts))


ONE_WORKER = Workers()


def make_workers(
    model: nn.Module,
    precision: Precision,
    batch_size: int,
    micro_batch: int | None = None,
    compiled: bool = False,
    most: int = sys.maxsize,
) -> Workers:
    """Return the workers for a model: on a CPU, one thread per core; on other devices, one thread.

    There are never more threads than micro-batches. A model with BatchNorm gets one thread and
    whole batches; a model in training that draws from PyTorch's generator gets one thread. If
    `micro_batch` is None, micro-batches have a fast size on a CPU, and are whole batches on other
    devices. `most` is the number of images that fit into memory at once, over all threads.
    """
    if batch_norms(model):
        return Workers()
    if precision.device.type != "cpu":
        return Workers(micro_batch)
    share = -(-batch_size // CORES)  # so that every core gets some images
    largest = CPU_MICRO_BATCH_BF16 if precision.name == "bf16" else CPU_MICRO_BATCH
    size = micro_batch or max(CPU_MICRO_BATCH, min(largest, share))
    size = min(size, max(1, most // CORES))
    # Threads would draw in an unpredictable order from PyTorch's generator, which PyTorch's own
    # dropout always uses, and ours uses in compiled code.
    draws = has_dropout(model, "p") or (compiled and has_dropout(model, "rate"))
    return Workers(
        size, 1 if model.training and draws else min(CORES, most, -(-batch_size // size))
    )
