"""The same architecture built by other libraries, trained the way their examples show."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from torch import nn

from vit_train.model.config import ViTConfig


def timm(config: ViTConfig, image_size: int, num_classes: int) -> nn.Module:
    library: Any = import_module("timm.models.vision_transformer")
    model: nn.Module = library.VisionTransformer(
        img_size=image_size,
        patch_size=config.patch_size,
        num_classes=num_classes,
        embed_dim=config.embed_dim,
        depth=config.depth,
        num_heads=config.num_heads,
        mlp_ratio=config.hidden_dim / config.embed_dim,
    )
    return model


def torchvision(config: ViTConfig, image_size: int, num_classes: int) -> nn.Module:
    library: Any = import_module("torchvision.models")
    model: nn.Module = library.VisionTransformer(
        image_size=image_size,
        patch_size=config.patch_size,
        num_layers=config.depth,
        num_heads=config.num_heads,
        hidden_dim=config.embed_dim,
        mlp_dim=config.hidden_dim,
        num_classes=num_classes,
    )
    return model


def vit_pytorch(config: ViTConfig, image_size: int, num_classes: int) -> nn.Module:
    """Build vit-pytorch's ViT, which has 0.2 % fewer weights.

    It has no biases in qkv and a LayerNorm before and after the patches.
    """
    library: Any = import_module("vit_pytorch")
    model: nn.Module = library.ViT(
        image_size=image_size,
        patch_size=config.patch_size,
        num_classes=num_classes,
        dim=config.embed_dim,
        depth=config.depth,
        heads=config.num_heads,
        dim_head=config.embed_dim // config.num_heads,
        mlp_dim=config.hidden_dim,
    )
    return model


BUILDERS: dict[str, Callable[[ViTConfig, int, int], nn.Module]] = {
    "timm": timm,
    "torchvision": torchvision,
    "vit-pytorch": vit_pytorch,
}


def build_peer(name: str, config: ViTConfig, image_size: int, num_classes: int) -> nn.Module:
    """Build a library's model; raise ValueError, with what to install, if it is missing."""
    try:
        return BUILDERS[name](config, image_size, num_classes)
    except ImportError as error:
        raise ValueError(
            f"{name} is not installed: pip install -e '.[peers]' in the checkout"
        ) from error
