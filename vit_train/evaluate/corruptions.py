"""Corruptions of images for `robustness=true`: seven from CIFAR-10-C, and darkness."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

# The width of CIFAR-10-C's images.
CIFAR_WIDTH = 32


def gaussian_noise(x: Tensor, std: float, generator: torch.Generator) -> Tensor:
    return x + std * torch.randn(x.shape, generator=generator)


def shot_noise(x: Tensor, white: float, generator: torch.Generator) -> Tensor:
    """Replace each value by a random (Poisson) number of photons, scaled back to the range of x.

    A value of 1 gives `white` photons on average.
    """
    return torch.poisson(x * white, generator=generator) / white


def impulse_noise(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Set randomly chosen values to 0 or 1; `share` is the fraction of values that change."""
    drawn = torch.rand(x.shape, generator=generator)
    return x.masked_fill(drawn < share / 2, 0).masked_fill(drawn > 1 - share / 2, 1)


def gaussian_blur(x: Tensor, std: float, generator: torch.Generator) -> Tensor:
    """Blur with a Gaussian of `std` pixels (at 32×32), cut off at four standard deviations."""
    std = std * min(x.shape[2:]) / CIFAR_WIDTH
    reach = int(4 * std + 0.5)
    kernel = torch.exp(-(torch.arange(-reach, reach + 1) ** 2) / (2 * std**2))
    kernel = (kernel / kernel.sum()).view(1, 1, -1, 1)
    padded = F.pad(x, (reach, reach, reach, reach), mode="replicate").flatten(0, 1).unsqueeze(1)
    return F.conv2d(F.conv2d(padded, kernel), kernel.mT).view(x.shape)


def pixelate(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Reduce images to `share` of their side length by averaging, then enlarge them again."""

    def means(size: int) -> Tensor:
        """Return the matrix (side,size) that averages neighbors, for the reduced side length."""
        side = max(1, int(size * share))
        larger = ((torch.arange(size) + 0.5) * side / size).ceil().long() - 1
        members = F.one_hot(larger, side).T.float()
        return members / members.sum(1, keepdim=True)

    height, width = x.shape[2:]
    return F.interpolate(means(height) @ x @ means(width).T, (height, width), mode="nearest-exact")


def brightness(x: Tensor, more: float, generator: torch.Generator) -> Tensor:
    """Add `more` to each pixel's HSV value (its largest channel); keep hue and saturation."""
    value = x.amax(1, keepdim=True)
    raised = (value + more).clamp(max=1)
    return torch.where(value > 0, x * raised / value, raised)


def darkness(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    return x * share


def contrast(x: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Multiply each value's distance from its channel's mean over the image by `share`."""
    mean = x.mean(dim=(2, 3), keepdim=True)
    return mean + (x - mean) * share


# The corruptions, each with its strength by severity, 1 to 5.
CORRUPTIONS: dict[
    str, tuple[Callable[[Tensor, float, torch.Generator], Tensor], tuple[float, ...]]
] = {
    "gaussian noise": (gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot noise": (shot_noise, (500, 250, 100, 75, 50)),
    "impulse noise": (impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "gaussian blur": (gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1.0)),
    "pixelate": (pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "brightness": (brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "darkness": (darkness, (0.75, 0.6, 0.45, 0.3, 0.18)),
    "contrast": (contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
}
SEVERITIES = range(1, 6)
# Number of pixel values to corrupt at once: a thousand images of 32×32.
VALUES = 1000 * 3 * 32**2


def corrupted(images: Tensor, name: str, severity: int) -> Tensor:
    """Return uint8 images (N,3,H,W) with the named corruption, at a severity from 1 to 5.

    Equal arguments give equal results.
    """
    corrupt, strengths = CORRUPTIONS[name]
    generator = torch.Generator().manual_seed(1000 * list(CORRUPTIONS).index(name) + severity)
    chunks = [
        corrupt(chunk.float() / 255, strengths[severity - 1], generator)
        .mul(255)
        .round_()
        .clamp_(0, 255)
        .byte()
        for chunk in images.split(max(1, VALUES // images[0].numel()))
    ]
    return torch.cat(chunks)
