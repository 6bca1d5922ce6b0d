"""Convolutional networks for comparison with a small ViT: a plain, a residual and a fast one."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vit_train.config.fields import Size
from vit_train.config.model import CnnConfig, FastCnnConfig, ResNetConfig
from vit_train.model.layers import Head, channels_last, in_thirds


def conv_norm(
    in_channels: int, out_channels: int, size: int, stride: int, bias: bool
) -> list[nn.Module]:
    """Return a convolution and a BatchNorm; the padding keeps the image size for stride 1."""
    conv = nn.Conv2d(in_channels, out_channels, size, stride, padding=size // 2, bias=bias)
    return [conv, nn.BatchNorm2d(out_channels)]


class Cnn(nn.Module):
    """Base of the networks: images (B,C,H,W) → logits (B,K)."""

    head: nn.Module

    def thirds(self, images: Tensor) -> list[Tensor]:
        """Return the features (B,D,h,w) after each third of the layers."""
        raise NotImplementedError

    def pool(self, x: Tensor) -> Tensor:
        """Return the head's input (B,D) for the last features (B,D,h,w)."""
        return x.mean(dim=(2, 3))

    def forward(self, images: Tensor, return_features: bool = False) -> Any:
        """Return the logits and, with `return_features`, the features of `thirds`."""
        features = self.thirds(channels_last(images))
        logits = self.head(self.pool(features[-1]))
        return (logits, features) if return_features else logits


class SimpleCnn(Cnn):
    """A plain CNN: 3×3 convolutions with BatchNorm and ReLU, global mean pooling, a linear head.

    Each increase in width, except in the first convolution, is preceded by 2×2 max pooling, which
    halves the image. Raises ValueError if the image is too small for all these halvings.
    """

    def __init__(
        self, config: CnnConfig, image_size: Size, in_channels: int, num_classes: int
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = in_channels
        side = min(image_size)
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

    def thirds(self, images: Tensor) -> list[Tensor]:
        return in_thirds(self.features, images)


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
        self.stride = stride
        same = stride == 1 and in_channels == out_channels
        self.shortcut = nn.Sequential(
            *([] if same else conv_norm(in_channels, out_channels, 1, 1, bias=False))
        )

    def forward(self, x: Tensor) -> Tensor:
        # Equal to a 1×1 convolution with a stride, whose backward pass may overwrite memory if x
        # has fewer than 16 channels (github.com/uxlfoundation/oneDNN/issues/6035).
        strided = x[:, :, :: self.stride, :: self.stride]
        return F.relu(self.shortcut(strided) + self.residual(x))


class SmallResNet(Cnn):
    """A ResNet for CIFAR as in He et al. 2016, but with 1×1 convolutions in the shortcuts.

    Each stage has `config.blocks` blocks; each stage except the first halves the image.
    """

    def __init__(
        self, config: ResNetConfig, image_size: Size, in_channels: int, num_classes: int
    ) -> None:
        super().__init__()
        first, *_ = config.widths
        self.stem = nn.Sequential(*conv_norm(in_channels, first, 3, 1, bias=False), nn.ReLU())
        layers = []
        before = first
        for stage, width in enumerate(config.widths):
            for block in range(config.blocks):
                layers.append(ResidualBlock(before, width, 2 if stage > 0 and block == 0 else 1))
                before = width
        self.stages = nn.Sequential(*layers)
        self.head = Head(before, num_classes)

    def thirds(self, images: Tensor) -> list[Tensor]:
        return in_thirds(self.stages, self.stem(images))


# Added to the variances of whitened pixels, so that directions with little variance stay small.
WHITENING_EPS = 5e-4


def filters(in_channels: int, out_channels: int) -> nn.Conv2d:
    """Return a 3×3 convolution without bias, whose first outputs are initially its inputs."""
    conv = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
    nn.init.dirac_(conv.weight.data[:in_channels])
    return conv


def shifting_norm(channels: int) -> nn.BatchNorm2d:
    """Return a BatchNorm that learns a shift but no scale, and tracks the last few batches."""
    norm = nn.BatchNorm2d(channels, momentum=0.4)
    norm.weight.requires_grad_(False)
    return norm


class FastCnn(Cnn):
    """A CNN that trains in few epochs, after Jordan 2024 (arXiv:2404.00498).

    The first layer whitens patches of 2×2 pixels; only its biases are trained. Each width has a
    block of two 3×3 convolutions; the first one is followed by 2×2 max pooling. The head sees each
    channel's maximum. Unlike in Jordan's, the logits are not scaled, the head has a bias, the
    biases of the whitening train to the end, and BatchNorm's eps is 1e-5. Raises
    ValueError if the image is too small for all poolings.
    """

    def __init__(
        self, config: FastCnnConfig, image_size: Size, in_channels: int, num_classes: int
    ) -> None:
        super().__init__()
        if (min(image_size) - 1) >> len(config.widths) < 1:
            raise ValueError(
                f"model.widths={config.widths} halve the image more often than its size allows "
                "(once for each width): use fewer widths or a larger data.image_size"
            )
        before = 2 * in_channels * 2 * 2
        self.whitening = nn.Conv2d(in_channels, before, 2)
        self.whitening.weight.requires_grad_(False)
        self.blocks = nn.ModuleList()
        for width in config.widths:
            first = filters(before, width), nn.MaxPool2d(2), shifting_norm(width), nn.GELU()
            second = filters(width, width), shifting_norm(width), nn.GELU()
            self.blocks.append(nn.Sequential(*first, *second))
            before = width
        self.head = Head(before, num_classes)

    @torch.no_grad()
    def whiten(self, images: Tensor) -> None:
        """Make the first layer whiten the patches of normalized training images (N,C,H,W).

        Its outputs are the principal components of a patch, scaled to variance 1, and their
        negatives.
        """
        patches = F.unfold(images, 2).mT.flatten(0, 1)  # (P,4C)
        variances, directions = torch.linalg.eigh(patches.T @ patches / len(patches))
        components = (directions / (variances + WHITENING_EPS).sqrt()).T
        weights = torch.cat((components, -components))
        self.whitening.weight.copy_(weights.view_as(self.whitening.weight))

    def forward(self, images: Tensor, return_features: bool = False) -> Any:
        found = super().forward(images, return_features)
        if not return_features:
            return found
        logits, features = found
        # The poolings leave out the right and bottom edges; a hint needs maps of the whole image.
        return logits, [F.pad(each, (0, 1, 0, 1), mode="replicate") for each in features]

    def thirds(self, images: Tensor) -> list[Tensor]:
        return in_thirds(self.blocks, F.gelu(self.whitening(images)))

    def pool(self, x: Tensor) -> Tensor:
        return x.amax(dim=(2, 3))
