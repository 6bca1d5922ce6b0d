"""Corruptions of images, to measure what a model still recognizes.

Seven kinds of CIFAR-10-C (Hendrycks & Dietterich 2019, arXiv:1903.12261) in its five severities,
and darkness. Widths are shares of the image's, so that at 32 pixels they are those published. The
noise is drawn anew; gray levels are rounded, where CIFAR-10-C has the next lower ones.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

SEVERITIES = 5
# The images' width in CIFAR-10-C.
WIDTH = 32


def gaussian_noise(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    std = (0.04, 0.06, 0.08, 0.09, 0.10)[severity]
    return x + std * torch.randn(x.shape, generator=generator)


def shot_noise(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Count photons: at each pixel a Poisson number with this many for white."""
    white = (500, 250, 100, 75, 50)[severity]
    return torch.poisson(x * white, generator=generator) / white


def impulse_noise(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Set this share of all values to black or white."""
    share = (0.01, 0.02, 0.03, 0.05, 0.07)[severity]
    drawn = torch.rand(x.shape, generator=generator)
    return x.masked_fill(drawn < share / 2, 0).masked_fill(drawn > 1 - share / 2, 1)


def gaussian_blur(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Blur by a Gaussian that is cut off at four standard deviations."""
    std = (0.4, 0.6, 0.7, 0.8, 1.0)[severity] * x.shape[-1] / WIDTH
    reach = int(4 * std + 0.5)
    places = torch.arange(-reach, reach + 1)
    kernel = torch.exp(-(places**2) / (2 * std**2))
    kernel = (kernel / kernel.sum()).view(1, 1, -1, 1)
    padded = F.pad(x, (reach, reach, reach, reach), mode="replicate").flatten(0, 1).unsqueeze(1)
    return F.conv2d(F.conv2d(padded, kernel), kernel.mT).view(x.shape)


def pixelate(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Replace each pixel by the mean of those whose centers are in the same larger one."""
    size = x.shape[-1]
    side = max(1, int(size * (0.95, 0.9, 0.85, 0.75, 0.65)[severity]))
    larger = ((torch.arange(size) + 0.5) * side / size).ceil().long() - 1
    members = F.one_hot(larger, side).T.float()  # (side,size)
    means = members / members.sum(1, keepdim=True)
    return F.interpolate(means @ x @ means.T, (size, size), mode="nearest-exact")


def brightness(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Raise the value of HSV, the largest channel, and keep hue and saturation."""
    value = x.amax(1, keepdim=True)
    raised = (value + (0.05, 0.1, 0.15, 0.2, 0.3)[severity]).clamp(max=1)
    return torch.where(value > 0, x * raised / value, raised)


def darkness(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    return x * (0.75, 0.6, 0.45, 0.3, 0.18)[severity]


def contrast(x: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    """Bring each channel closer to its mean over the image."""
    mean = x.mean(dim=(2, 3), keepdim=True)
    return mean + (x - mean) * (0.75, 0.5, 0.4, 0.3, 0.15)[severity]


CORRUPTIONS: dict[str, Callable[[Tensor, int, torch.Generator], Tensor]] = {
    "gaussian noise": gaussian_noise,
    "shot noise": shot_noise,
    "impulse noise": impulse_noise,
    "gaussian blur": gaussian_blur,
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
