"""Where tensors lie: on the model's device or, if it is too small, in main memory."""

import logging

import torch
from torch import Tensor

from vit_train.limits import gigabytes

logger = logging.getLogger(__name__)

# Share of a GPU's free memory that images may take; the rest is for the model and its activations.
SHARE = 0.5


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to the device.

    A GPU copies from pinned memory, so that the CPU does not wait for the transfer.
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def place(images: Tensor, device: torch.device, purpose: str) -> Tensor:
    """Move a set's images to the device; leave them, with a warning, if they do not fit there."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # What an earlier run in this process has left, PyTorch keeps and gives out again.
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        if images.nbytes > SHARE * free:
            logger.warning(
                f"the images for {purpose} take {gigabytes(images.nbytes)}, too much for "
                f"{gigabytes(free)} of free GPU memory: they stay in main memory, and each batch "
                "is copied to the GPU"
            )
            return images
    return images.to(device)
