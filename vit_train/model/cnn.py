"""Two convolutional networks for comparison with a small ViT: a plain CNN and a ResNet."""

from torch import Tensor, nn

from vit_train.base.setting import Size
from vit_train.model.config import CnnConfig, ResNetConfig
from vit_train.model.layers import Head


def conv_norm(
    in_channels: int, out_channels: int, size: int, stride: int, bias: bool
) -> list[nn.Module]:
    """Return a convolution and a BatchNorm; the padding keeps the image size for stride 1."""
    conv = nn.Conv2d(in_channels, out_channels, size, stride, padding=size // 2, bias=bias)
    return [conv, nn.BatchNorm2d(out_channels)]


class SimpleCnn(nn.Module):
    """A plain CNN: 3×3 convolutions with BatchNorm and ReLU, global mean pooling, a linear head.

    Each increase in width, except in the first convolution, is preceded by 2×2 max pooling, which
    halves the image. Raises ValueError if the image is too small for all these halvings.
    """

    def __init__(
        self, config: CnnConfig, image_size: Size, in_channels: int, num_classes: int
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before, side = in_channels, min(image_size)
        for width in config.widths:
            if layers and width > before:
                layers.append(nn.MaxPool2d(2))
                side //= 2
            layers += [*conv_norm(before, width, 3, 1, bias=True), nn.ReLU()]
            before = width
        if side < 1:
            raise ValueError(
                f"model.widths={config.widths} halve the image more often than its size allows "
                "(once for each increase in width): use fewer increases or a larger data.image_size"
            )
        self.features = nn.Sequential(*layers)
        self.head = Head(before, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).mean(dim=(2, 3)))  # type: ignore[no-any-return]


class ResidualBlock(nn.Module):
    """A residual block, relu(x + f(x)), with two 3×3 convolutions in f.

    If f changes the shape, x is brought to the same shape by a 1×1 convolution. From He et al. 2016
    (arXiv:1512.03385).
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *conv_norm(in_channels, out_channels, 3, stride, bias=False),
            nn.ReLU(),
            *conv_norm(out_channels, out_channels, 3, 1, bias=False),
        )
        same = stride == 1 and in_channels == out_channels
        self.shortcut = nn.Sequential(
            *([] if same else conv_norm(in_channels, out_channels, 1, stride, bias=False))
        )

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.shortcut(x) + self.residual(x))


class SmallResNet(nn.Module):
    """A ResNet for CIFAR as in He et al. 2016, but with 1×1 convolutions in the shortcuts.

    Each stage has `config.blocks` blocks; each stage except the first halves the image.
    """

    def __init__(
        self, config: ResNetConfig, image_size: Size, in_channels: int, num_classes: int
    ) -> None:
        super().__init__()
        first, *_ = config.widths
        self.stem = nn.Sequential(*conv_norm(in_channels, first, 3, 1, bias=False), nn.ReLU())
        layers, before = [], first
        for stage, width in enumerate(config.widths):
            for block in range(config.blocks):
                layers.append(ResidualBlock(before, width, 2 if stage > 0 and block == 0 else 1))
                before = width
        self.stages = nn.Sequential(*layers)
        self.head = Head(before, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.stages(self.stem(images)).mean(dim=(2, 3)))  # type: ignore[no-any-return]
