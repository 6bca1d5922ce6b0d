"""Transfer of random draws from the CPU to the images' device."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to the device.

    A GPU copies from pinned memory, so that the CPU does not wait for the transfer.
    """
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
