"""What is drawn on the CPU, sent to where the images are."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy on the device. A GPU takes it from pinned memory, so that nobody waits for it."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
