"""Where the arithmetic of a step happens: a batch is cut into pieces, and lanes work on them."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor, nn

# Images a piece on a CPU: small enough for the activations to stay in the cache, large enough
# for the work to outweigh Python's (measured from 1.2 to 4.8 M parameters, 65 and 145 tokens).
CPU_PIECE = 16
# What PyTorch found when it was loaded: OMP_NUM_THREADS, or the cores of this machine.
CORES = torch.get_num_threads()

Result = TypeVar("Result")


def mixes_images(model: nn.Module) -> bool:
    """Whether an image's result depends on the others: such a batch cannot be cut."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def drops(model: nn.Module, *rates: str) -> bool:
    """Whether a module has one of these rates of dropout: `rate` is ours, `p` PyTorch's."""
    return any(getattr(module, rate, 0) for module in model.modules() for rate in rates)


class Lanes:
    """Threads, each with its share of the cores, that take pieces of a batch through the model.

    PyTorch by itself spreads every operation over all cores and waits for the slowest, some 300
    times a step. Lanes meet once a step: that is faster, and far less hurt by other programs that
    want a core, too. Results come back in the pieces' order, so that sums are always the same.
    """

    def __init__(self, piece: int | None = None, count: int = 1) -> None:
        self.piece, self.count = piece, count
        self.pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> "Lanes":
        if self.count > 1:
            self.before = torch.get_num_threads()
            share = max(1, CORES // self.count)
            torch.set_num_threads(share)
            self.pool = ThreadPoolExecutor(
                self.count, "lane", initializer=torch.set_num_threads, initargs=(share,)
            )
        return self

    def __exit__(self, *error: object) -> None:
        if self.pool is not None:
            self.pool.shutdown(cancel_futures=True)
            self.pool = None
            torch.set_num_threads(self.before)

    def over(self, function: Callable[..., Result], *batch: Tensor) -> Iterator[Result]:
        """function(*piece) for each piece of these tensors' first axis, in order.

        Only a few results are held at a time. Thread-local modes (no_grad, autocast) are up to
        the function.
        """
        pieces = zip(*(tensor.split(self.piece or len(tensor)) for tensor in batch), strict=True)
        if self.pool is None:
            yield from (function(*piece) for piece in pieces)
            return
        pending: deque[Future[Result]] = deque()
        for piece in pieces:
            pending.append(self.pool.submit(function, *piece))
            if len(pending) > 2 * self.count:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


ONE_LANE = Lanes()


def make_lanes(
    model: nn.Module,
    device: torch.device,
    batch_size: int,
    micro_batch: int | None = None,
    compiled: bool = False,
) -> Lanes:
    """On a CPU as many lanes as there are cores and pieces; elsewhere one, with the whole batch."""
    if mixes_images(model):
        return Lanes()
    if device.type != "cpu":
        return Lanes(micro_batch)
    piece = micro_batch or CPU_PIECE
    # Threads would share PyTorch's generator, and draw from it in any order.
    alone = model.training and drops(model, *(("p", "rate") if compiled else ("p",)))
    return Lanes(piece, 1 if alone else min(CORES, -(-batch_size // piece)))
