"""Training of one model in several processes, each computing its share of every batch.

The number of processes affects results only by rounding: the batch size in the config covers all
processes, and gradients and results are summed over the whole batch. The model is not wrapped in
DistributedDataParallel. Instead, one all-reduce per step sums all gradients, once they are
computed.
"""

import contextlib
import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

# Imported before a process group exists: functions of this module have the current group as a
# default argument, which would keep the group and its threads alive until the interpreter exits,
# and that can abort the process. torch._dynamo imports this module, too.
import torch.distributed.nn.functional  # noqa: F401
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from vit_train.base.text import reason
from vit_train.config.training import DistributedConfig

Content = TypeVar("Content")


@contextlib.contextmanager
def exchanging() -> Iterator[None]:
    """Raise ValueError if communication between processes fails within the block."""
    try:
        yield
    except (torch.OutOfMemoryError, torch.AcceleratorError):  # an error of earlier work on the GPU
        raise
    except RuntimeError as error:
        raise ValueError(
            "another training process has ended, or did not respond within "
            "distributed.timeout_s seconds: its own message, if it left one, says why"
        ) from error


class Processes:
    """Communication of this process, number `rank` (from 0) of `count`, with the other processes.

    A single process never communicates.
    """

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank = rank
        self.count = count
        # The main process writes files and reports.
        self.is_main = rank == 0

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace a tensor, in place, with its sum over all processes."""
        if self.count > 1:
            with exchanging():
                dist.all_reduce(tensor)

    def any(self, flag: bool) -> bool:
        """Return True in every process if `flag` is true in any process.

        The exchange uses the CPU, so that it does not wait for a GPU.
        """
        flags = torch.tensor([float(flag)])
        self.all_reduce(flags)
        return bool(flags.item())

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes, in the order of their ranks.

        `rows` (n,K) is on the CPU; n may differ between processes.
        """
        if self.count == 1:
            return rows
        gathered: list[Any] = [None] * self.count
        with exchanging():
            dist.all_gather_object(gathered, rows.numpy())
        return torch.cat([torch.from_numpy(part) for part in gathered])

    def copy_from_main(self, model: nn.Module) -> None:
        """Replace the model's weights and buffers with those of the main process."""
        if self.count > 1:
            with exchanging():
                for tensor in model.state_dict().values():
                    dist.broadcast(tensor, src=0)

    def broadcast(self, content: Content) -> Content:
        """Return the main process's `content` in every process.

        `content` consists of plain values and CPU tensors.
        """
        if self.count == 1:
            return content
        box: list[Any] = [content if self.is_main else None]
        with exchanging():
            dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]  # type: ignore[no-any-return]


ALONE = Processes()


def join_processes(device: torch.device, config: DistributedConfig) -> Processes:
    """Connect this process with the others that torchrun started, if any, and select its GPU.

    Raise ValueError if there are too few GPUs, or if the other processes cannot be reached.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return ALONE
    backend = "gloo"
    own = None
    if device.type == "cuda":
        if device.index is not None:
            raise ValueError(f"device={device} is one GPU for {count} processes: use device=cuda")
        number = int(os.environ.get("LOCAL_RANK", "0"))
        gpus = torch.cuda.device_count()
        if gpus == 1 and os.environ.get("CUDA_VISIBLE_DEVICES"):
            number = 0  # a launcher may show each process only its own GPU
        if number >= gpus:
            raise ValueError(
                f"process {number} on this machine has no GPU of its own: set torchrun's "
                f"--nproc-per-node to at most {gpus}, the number of GPUs"
            )
        own = torch.device("cuda", number)
        torch.cuda.set_device(number)
        # gloo exchanges CPU tensors, even where nccl exchanges those on GPUs.
        backend = "cpu:gloo,cuda:nccl"
    try:
        wait = timedelta(seconds=config.timeout_s)
        store, rank, count = next(rendezvous("env://", timeout=wait))
        # After a restart, torchrun's store still has the addresses of processes that have ended.
        store = PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
        dist.init_process_group(
            backend,
            store=store,
            rank=rank,
            world_size=count,
            timeout=wait,
            device_id=own,
        )
    except RuntimeError as error:
        raise ValueError(f"could not connect the training processes: {reason(error)}") from error
    return Processes(rank, count)


def joined_sums(
    parameters: Sequence[nn.Parameter], count: int
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Return the parameters' gradients, `count` other sums, and one flat tensor of both, all 0.

    The gradients, each of them a parameter's `grad`, and the sums (count,) are views of the flat
    tensor, so that one all-reduce adds all of them over all processes.
    """
    multiple = 64  # so that each view begins at a full vector of the device
    like = [*parameters, parameters[0].new_zeros(count)]
    sizes = [-(-tensor.numel() // multiple) * multiple for tensor in like]
    joined = like[0].new_zeros(sum(sizes), requires_grad=False)
    parts = zip(joined.split(sizes), like, strict=True)
    *gradients, sums = [part[: each.numel()].view(each.shape) for part, each in parts]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    return gradients, sums, joined


def leave_processes() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
