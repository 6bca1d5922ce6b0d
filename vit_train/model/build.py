"""Build models from their settings, and compute the models' parameters and memory."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from vit_train.base.machine import require_memory
from vit_train.config.fields import ImageShape, Size, builder, in_pixels
from vit_train.config.model import CnnConfig, ModelConfig, ViTConfig
from vit_train.model.attention import attention_of
from vit_train.model.patches import grid_of, stem_widths
from vit_train.model.vit import VisionTransformer


def build(config: ModelConfig, image_shape: ImageShape, num_classes: int) -> nn.Module:
    """Build a classifier of images (C,H,W) with newly initialized weights.

    The class that the settings build gets the settings, the images' height and width, their number
    of channels, and the number of classes.
    """
    model: nn.Module = builder(config)(config, image_shape[1:], image_shape[0], num_classes)
    return model


def on_meta(build: Callable[[], nn.Module], config: ModelConfig) -> nn.Module:
    """Build the model on PyTorch's meta device, which holds shapes but no values.

    Raise ValueError if the model is too large for any machine.
    """
    try:
        with torch.device("meta"):
            return build()
    except (RuntimeError, TypeError, OverflowError) as error:
        # An overflow means that the model's size does not fit into a 64-bit integer.
        if "overflow" not in str(error).lower():
            raise
        raise ValueError(
            f"{config.size_settings}: no machine has enough memory for such a model; choose "
            "smaller values"
        ) from error


def parameter_count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def parameter_breakdown(model: nn.Module) -> str:
    """Count the parameters in total and by module: "1,290 parameters = 1,280 body + 10 head"."""
    parts = [f"{each.numel():,} {name}" for name, each in model.named_parameters(recurse=False)]
    for name, child in model.named_children():
        sizes = {parameter_count(each) for each in child.children()}
        if isinstance(child, nn.ModuleList) and len(child) > 1 and len(sizes) == 1:
            parts.append(f"{len(child)} × {sizes.pop():,} {name}")
        elif parameter_count(child):
            parts.append(f"{parameter_count(child):,} {name}")
    return f"{parameter_count(model):,} parameters = {' + '.join(parts)}"


def attention_bytes(config: ModelConfig, image_size: Size) -> int:
    """Return the bytes of one layer's attention for one image, (H,T,T) float32.

    The result is 0 for models without attention. It is also 0 for PyTorch's kernels, which do not
    store the attention, unless positions are relative: then these kernels need the same memory as
    this package's. Attention of your own counts as if it were stored. Training in bf16 on a CPU
    with few tokens also stores the attention, but this memory is not counted.
    """
    if not isinstance(config, ViTConfig) or (
        config.kernels != "scratch"
        and config.positions != "relative"
        and config.attention == ViTConfig.attention
    ):
        return 0
    tokens = math.prod(grid_of(image_size, config.patch_size)) + config.num_prefix_tokens
    return 4 * config.num_heads * tokens**2


def attention_gradient_bytes(config: ModelConfig, image_size: Size) -> int:
    """Return the bytes of all layers' attention and its gradients for one image.

    `count_flops` and explanations of predictions need this memory. Each layer stores the attention,
    the attention's gradient, and the product of the two. The result is 0 for a model without
    attention.
    """
    if not isinstance(config, ViTConfig):
        return 0
    return 3 * config.depth * attention_bytes(replace(config, kernels="scratch"), image_size)


# Memory for the attention and its gradients in explanations.
EXPLAINED_BYTES = 2**30


def images_at_once(model: VisionTransformer) -> int:
    """Return the number of images whose attention, with gradients, fits into EXPLAINED_BYTES.

    The result is 0 for attention without weights.
    """
    most = EXPLAINED_BYTES // attention_gradient_bytes(model.config, model.image_shape[1:])
    return most if attention_of(model.config).has_weights else 0


def forward_bytes(config: ModelConfig, image_shape: ImageShape) -> int:
    """Estimate the bytes of memory for a forward pass on one image (C,H,W), without the weights.

    The estimate covers the pixels, the activations of the widest layer, and one layer's attention.
    """
    channels, height, width = image_shape
    wide = 0
    pixels = height * width
    if isinstance(config, ViTConfig):
        tokens = math.prod(grid_of((height, width), config.patch_size)) + config.num_prefix_tokens
        stem = 2 * stem_widths(config)[0] * pixels if config.stem == "conv" else 0
        wide = tokens * (6 * config.embed_dim + 2 * config.hidden_dim) + stem
    elif isinstance(config, CnnConfig):
        wide = 3 * pixels * max(config.widths)
    # The image as uint8, normalized, and as another float32; logits, softmax and, for relative
    # positions, the products with all distances, which are twice as many as the tokens.
    return 9 * channels * pixels + 4 * wide + 6 * attention_bytes(config, (height, width))


# Attention between more patches takes seconds per image.
MOST_PATCHES = 2**15


def require_model_fits(
    config: ModelConfig,
    model: nn.Module,
    image_shape: ImageShape,
    copies: int = 1,
    more: int = 0,
) -> None:
    """Raise ValueError if a model needs more memory than the machine has, or too much time.

    The memory holds `copies` of the weights, a forward pass on one image (C,H,W), and `more` bytes.
    Attention and position tables grow with the image size, so even a small checkpoint may need more
    memory than the machine has. `model` may be on the meta device.
    """
    size = image_shape[1:]
    if isinstance(config, ViTConfig) and math.prod(grid_of(size, config.patch_size)) > MOST_PATCHES:
        raise ValueError(
            f"images of {in_pixels(size)} have more than {MOST_PATCHES:,} patches of "
            f"{config.patch_size} by {config.patch_size} pixels: choose a smaller data.image_size "
            "or a larger model.patch_size"
        )
    weights = sum(each.nbytes for each in model.parameters())
    buffers = sum(each.nbytes for each in model.buffers())
    require_memory(
        copies * weights + buffers + forward_bytes(config, image_shape) + more,
        f"{config.size_settings}, with images of {in_pixels(size)},",
        "choose a smaller model, larger patches or smaller images",
    )
