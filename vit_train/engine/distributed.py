"""Several processes that train one model: each computes its share of every batch.

The number of processes changes nothing but rounding: a batch is what the config says, whatever
their number, and gradients and results are summed over all of it. There is no wrapper around the
model: after the gradients of a step are computed they are added up, once, in one message.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Content = TypeVar("Content")


class ProcessLost(ValueError):
    """Another process of this training has ended, so this one cannot go on."""


@contextlib.contextmanager
def exchanging() -> Iterator[None]:
    """Around every exchange, which fails only when another process is gone; ProcessLost then."""
    try:
        yield
    except RuntimeError as error:  # of gloo and nccl, each in their own words
        raise ProcessLost("another process of this training has ended") from error


class Processes:
    """This process among `count`, number `rank`; alone it never communicates."""

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank, self.count = rank, count

    @property
    def is_main(self) -> bool:
        """Whether this process writes and reports."""
        return self.rank == 0

    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""
        if self.count == 1:
            return
        together = torch.cat([tensor.flatten() for tensor in tensors])
        with exchanging():
            dist.all_reduce(together)
        parts = together.split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))

    def any(self, flag: bool) -> bool:
        """Whether it is true in any process; on the CPU, so that no GPU is waited for."""
        if self.count == 1:
            return flag
        flags = torch.tensor([float(flag)])
        with exchanging():
            dist.all_reduce(flags)
        return bool(flags.item())

    def gather(self, rows: Tensor) -> Tensor:
        """(n,K) on the CPU, n differing from process to process → all rows, by rank."""
        if self.count == 1:
            return rows
        every: list[Any] = [None] * self.count
        with exchanging():
            dist.all_gather_object(every, rows.numpy())
        return torch.cat([torch.from_numpy(each) for each in every])

    def broadcast(self, content: Content) -> Content:
        """What the main process has, in all of them: plain values and CPU tensors."""
        if self.count == 1:
            return content
        box: list[Any] = [content if self.is_main else None]
        with exchanging():
            dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]  # type: ignore[no-any-return]


ALONE = Processes()


def join_processes(device: torch.device) -> Processes:
    """Meet the others that torchrun has started, if any; on GPUs each takes one of its own."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return ALONE
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    with exchanging():
        # gloo carries what is on the CPU, also beside nccl.
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    return Processes(dist.get_rank(), count)


def leave_processes() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
