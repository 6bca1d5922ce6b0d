"""Corruptions: always the same, worse with severity, and those of CIFAR-10-C.

Those without noise are compared with their published definitions, written in float64 with NumPy,
SciPy and Pillow; of noise the distribution is compared.
"""

import colorsys
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter
from torch import Tensor
from torchvision.transforms.functional import gaussian_blur as torchvision_blur

from vit_train.data.dataset import ImageSet
from vit_train.evaluate.corruptions import CORRUPTIONS, SEVERITIES, corrupted, gaussian_blur
from vit_train.evaluate.measuring import robustness


def photos(size: int = 32) -> Tensor:
    """Smooth random images, whose values use the whole range."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(20, 3, 6, 6, generator=generator)
    smooth = F.interpolate(coarse, (size, size), mode="bicubic")
    return (255 * smooth).round().clamp(0, 255).to(torch.uint8)


def test_robustness_measures_each_corruption_at_each_severity() -> None:
    images = ImageSet(photos(), torch.zeros(20))

    def level(each: ImageSet) -> SimpleNamespace:
        return SimpleNamespace(acc=each.images.double().mean().item())

    found = robustness(level, images)["acc_by_severity"]  # type: ignore[arg-type]
    assert found == {
        name: [corrupted(photos(), name, each).double().mean().item() for each in SEVERITIES]
        for name in CORRUPTIONS
    }


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_each_is_worse_the_more_severe_it_is_and_always_the_same(name: str) -> None:
    images = photos()
    errors = []
    for severity in SEVERITIES:
        worse = corrupted(images, name, severity)
        assert worse.shape == images.shape and worse.dtype == torch.uint8
        assert torch.equal(worse, corrupted(images, name, severity))
        errors.append((worse.float() - images.float()).square().mean().item())
    assert errors[0] > 0.1 and errors == sorted(errors)
    assert errors[-1] > 2 * errors[0]


@pytest.mark.parametrize("size", [8, 33, 96])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_images_of_any_size_can_be_corrupted(name: str, size: int) -> None:
    assert corrupted(photos(size), name, 5).shape == (20, 3, size, size)


Picture = NDArray[np.float64]
severities = pytest.mark.parametrize("severity", SEVERITIES)


def published_blur(x: Picture, severity: int) -> Picture:
    sigma = (0.4, 0.6, 0.7, 0.8, 1)[severity - 1]
    blurred: Picture = gaussian_filter(x, (sigma, sigma, 0), mode="nearest", truncate=4)
    return blurred


def published_contrast(x: Picture, severity: int) -> Picture:
    mean = x.mean(axis=(0, 1), keepdims=True)
    return (x - mean) * (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1] + mean


def published_brightness(x: Picture, severity: int) -> Picture:
    more = (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
    pixels = []
    for red, green, blue in x.reshape(-1, 3):
        hue, saturation, value = colorsys.rgb_to_hsv(red, green, blue)
        pixels.append(colorsys.hsv_to_rgb(hue, saturation, min(1, value + more)))
    return np.array(pixels).reshape(x.shape)


def published_pixels(x: Picture, severity: int) -> Picture:
    side = int(32 * (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1])
    picture = Image.fromarray((255 * x).round().astype(np.uint8))
    small = picture.resize((side, side), Image.Resampling.BOX)
    return np.asarray(small.resize((32, 32), Image.Resampling.BOX)) / 255


# By the largest difference in gray levels: Pillow rounds between two steps.
PUBLISHED: dict[str, tuple[Callable[[Picture, int], Picture], float]] = {
    "gaussian blur": (published_blur, 0.501),
    "contrast": (published_contrast, 0.501),
    "brightness": (published_brightness, 0.501),
    "pixelate": (published_pixels, 1),
}


@severities
@pytest.mark.parametrize("name", PUBLISHED)
def test_without_noise_they_are_those_of_cifar_10_c(name: str, severity: int) -> None:
    images = torch.cat([photos()[:5], torch.randint(256, (3, 3, 32, 32)).to(torch.uint8)])
    images[0, :, :8] = 0  # black has no hue
    define, most = PUBLISHED[name]
    got = corrupted(images, name, severity).permute(0, 2, 3, 1).double().numpy()
    for image, worse in zip(images.permute(0, 2, 3, 1).double().numpy(), got, strict=True):
        expected = 255 * define(image / 255, severity).clip(0, 1)
        assert np.abs(worse - expected).max() <= most


GRAY = torch.full((50, 3, 32, 32), 128, dtype=torch.uint8)


@severities
def test_noise_is_as_strong_as_in_cifar_10_c(severity: int) -> None:
    noise, shots, struck = (
        corrupted(GRAY, f"{kind} noise", severity).double() / 255
        for kind in ("gaussian", "shot", "impulse")
    )
    std = (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
    assert noise.std().item() == pytest.approx(std, rel=0.02)
    white = (500, 250, 100, 75, 50)[severity - 1]
    assert shots.std().item() == pytest.approx((0.5 / white) ** 0.5, rel=0.02)
    share = (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1]
    for end in (0, 1):
        assert (struck == end).double().mean().item() == pytest.approx(share / 2, rel=0.08)


@severities
def test_darkness_leaves_a_share_of_the_light(severity: int) -> None:
    darker = 128 * (0.75, 0.6, 0.45, 0.3, 0.18)[severity - 1]
    assert corrupted(GRAY, "darkness", severity).unique().tolist() == [round(darker)]


def test_blur_grows_with_the_image() -> None:
    """Of an image of 64 pixels, twice as many are blurred together as of one of 32."""
    image, generator = torch.rand(1, 3, 64, 64), torch.Generator()
    ours = gaussian_blur(image, 0.8, generator)[..., 8:-8, 8:-8]  # edges are padded differently
    theirs = torchvision_blur(image, [13, 13], [1.6, 1.6])[..., 8:-8, 8:-8]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
