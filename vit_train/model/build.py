"""The models by their settings: a new model adds its line to BUILDERS."""

from collections.abc import Callable

from torch import nn

from vit_train.base.setting import registered
from vit_train.model.cnn import SimpleCnn, SmallResNet
from vit_train.model.config import CnnConfig, ModelConfig, ResNetConfig, ViTConfig
from vit_train.model.vit import VisionTransformer

# Each is called with its config, the images' size and channels, and the number of classes.
BUILDERS: dict[type, Callable[..., nn.Module]] = {
    ViTConfig: VisionTransformer,
    CnnConfig: SimpleCnn,
    ResNetConfig: SmallResNet,
}


def build(config: ModelConfig, image_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """Build a classifier of images (C,S,S) with newly initialized weights."""
    channels, size, _ = image_shape
    return registered(BUILDERS, config)(config, size, channels, num_classes)
