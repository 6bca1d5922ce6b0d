"""What a model takes, known from its shapes before any of its numbers are there."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from vit_train.model.config import ModelConfig, ViTConfig

Build = Callable[[], nn.Module]

# Nobody's model is deeper, and one of ten million blocks would take hours to put together.
MAX_LAYERS = 10_000


def on_meta(build: Callable[[], nn.Module], config: ModelConfig, more_layers: int = 0) -> nn.Module:
    """The model as shapes alone, on PyTorch's meta device; ValueError if it is absurdly large.

    `more_layers` are those that a task adds to what the config says.
    """
    layers = config.layers + more_layers
    if layers > MAX_LAYERS:
        raise ValueError(
            f"{config.size_settings}: a model has at most {MAX_LAYERS:,} layers, not {layers:,}"
        )
    try:
        with torch.device("meta"):
            return build()
    except (RuntimeError, TypeError, OverflowError) as error:
        if "overflow" not in str(error).lower():  # its size is not even an integer of 64 bits
            raise
        raise ValueError(
            f"{config.size_settings}: no machine has memory for such a model"
        ) from error


def bytes_of(tensors: Iterable[Tensor]) -> int:
    return sum(each.numel() * each.element_size() for each in tensors)


def attention_bytes(config: ModelConfig, image_size: int) -> int:
    """One layer's attention for one image, (H,T,T) float32; 0 where it is never written out."""
    if not isinstance(config, ViTConfig) or config.kernels == "fused":
        return 0
    tokens = (image_size // config.patch_size) ** 2 + config.has_class_token
    return 4 * config.num_heads * tokens**2
