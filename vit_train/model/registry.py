"""The models by name: the fixed set that a config or a checkpoint can choose from."""

from collections.abc import Callable
from typing import Any

from torch import nn

from vit_train.model.cnn import SimpleCnn, SmallResNet
from vit_train.model.config import ModelConfig
from vit_train.model.vit import VisionTransformer

MODELS: dict[str, Callable[[Any, int, int, int], nn.Module]] = {
    "vit": VisionTransformer,
    "cnn": SimpleCnn,
    "resnet": SmallResNet,
}


def build_model(
    config: ModelConfig, image_shape: tuple[int, int, int], num_classes: int
) -> nn.Module:
    """Build a classifier of images (C,S,S) with newly initialized weights."""
    channels, size, _ = image_shape
    return MODELS[config.name](config, size, channels, num_classes)
