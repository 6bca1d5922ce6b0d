"""Corruptions of images, to measure what a model still recognizes.

Eight kinds in five severities, after Hendrycks & Dietterich 2019 (arXiv:1903.12261), but written
for batches of small images: the figures are not those of CIFAR-10-C.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

SEVERITIES = 5


def gaussian_noise(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    std = (0.04, 0.06, 0.08, 0.10, 0.14)[severity]
    return x + std * torch.randn(x.shape, generator=generator)


def shot_noise(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Count photons: at each pixel a Poisson number with this many for white."""
    white = (250, 120, 60, 30, 15)[severity]
    return torch.poisson(x.clamp(min=0) * white, generator=generator) / white


def impulse_noise(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Set this share of all values to black or white."""
    share = (0.01, 0.02, 0.04, 0.08, 0.14)[severity]
    drawn = torch.rand(x.shape, generator=generator)
    return x.masked_fill(drawn < share / 2, 0).masked_fill(drawn > 1 - share / 2, 1)


def blur(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Blur by a Gaussian whose width is this share of the image's."""
    std = (0.015, 0.022, 0.03, 0.04, 0.055)[severity] * x.shape[-1]
    reach = max(1, round(3 * std))
    places = torch.arange(-reach, reach + 1)
    kernel = torch.exp(-(places**2) / (2 * std**2))
    kernel = (kernel / kernel.sum()).view(1, 1, -1, 1)
    padded = F.pad(x, (reach, reach, reach, reach), mode="replicate").flatten(0, 1).unsqueeze(1)
    return F.conv2d(F.conv2d(padded, kernel), kernel.mT).view(x.shape)


def pixelate(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    side = max(1, round(x.shape[-1] * (0.8, 0.65, 0.55, 0.45, 0.35)[severity]))
    small = F.interpolate(x, (side, side), mode="area")
    return F.interpolate(small, x.shape[2:], mode="nearest")


def brightness(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    return x + (0.1, 0.18, 0.26, 0.34, 0.44)[severity]


def darkness(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    return x * (0.75, 0.6, 0.45, 0.3, 0.18)[severity]


def contrast(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    mean = x.mean(dim=(1, 2, 3), keepdim=True)
    return mean + (x - mean) * (0.7, 0.5, 0.35, 0.22, 0.12)[severity]


CORRUPTIONS: dict[str, Callable[[Tensor, int, torch.Generator], Tensor]] = {
    "gaussian noise": gaussian_noise,
    "shot noise": shot_noise,
    "impulse noise": impulse_noise,
    "blur": blur,
    "pixelate": pixelate,
    "brightness": brightness,
    "darkness": darkness,
    "contrast": contrast,
}


# Pixel values that are corrupted at once: a thousand images of 32×32.
VALUES = 1000 * 3 * 32**2


def corrupted(images: Tensor, name: str, severity: int) -> Tensor:
    """Corrupt uint8 images (N,3,S,S), always in the same way; `severity` is 1 to 5."""
    generator = torch.Generator().manual_seed(1000 * list(CORRUPTIONS).index(name) + severity)
    chunks = [
        CORRUPTIONS[name](chunk.float() / 255, severity - 1, generator).mul(255).round_()
        for chunk in images.split(max(1, VALUES // images[0].numel()))
    ]
    return torch.cat([chunk.clamp_(0, 255).to(torch.uint8) for chunk in chunks])
