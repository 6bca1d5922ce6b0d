"""Corruptions: always the same, worse with severity, and what their names say."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vit_train.data.corruptions import CORRUPTIONS, SEVERITIES, blur, corrupted


def photos(size: int = 32) -> Tensor:
    """Smooth random images, whose values use the whole range."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(20, 3, 6, 6, generator=generator)
    smooth = F.interpolate(coarse, (size, size), mode="bicubic")
    return (255 * smooth).round().clamp(0, 255).to(torch.uint8)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_each_is_worse_the_more_severe_it_is_and_always_the_same(name: str) -> None:
    images = photos()
    errors = []
    for severity in range(1, SEVERITIES + 1):
        worse = corrupted(images, name, severity)
        assert worse.shape == images.shape and worse.dtype == torch.uint8
        assert torch.equal(worse, corrupted(images, name, severity))
        errors.append((worse.float() - images.float()).square().mean().item())
    assert errors[0] > 1 and errors == sorted(errors)
    assert errors[-1] > 2 * errors[0]


@pytest.mark.parametrize("size", [8, 33, 96])
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_images_of_any_size_can_be_corrupted(name: str, size: int) -> None:
    assert corrupted(photos(size), name, 5).shape == (20, 3, size, size)


def test_what_is_bright_dark_or_of_no_contrast() -> None:
    images = photos()
    mean = images.float().mean(dim=(1, 2, 3))
    assert (corrupted(images, "brightness", 3).float().mean(dim=(1, 2, 3)) > mean + 20).all()
    assert (corrupted(images, "darkness", 3).float().mean(dim=(1, 2, 3)) < 0.5 * mean).all()
    gray = corrupted(images, "contrast", 5).float()
    assert (gray.flatten(1).std(1) < 0.2 * images.float().flatten(1).std(1)).all()
    torch.testing.assert_close(gray.mean(dim=(1, 2, 3)), mean, rtol=0, atol=1)


GRAY = torch.full((50, 3, 32, 32), 128, dtype=torch.uint8)
severities = pytest.mark.parametrize("severity", range(1, SEVERITIES + 1))


@severities
def test_noise_is_as_strong_as_it_says(severity: int) -> None:
    noise, shots, struck = (
        corrupted(GRAY, f"{kind} noise", severity).double() / 255
        for kind in ("gaussian", "shot", "impulse")
    )
    std = (0.04, 0.06, 0.08, 0.10, 0.14)[severity - 1]
    assert noise.std().item() == pytest.approx(std, rel=0.02)
    white = (250, 120, 60, 30, 15)[severity - 1]
    assert shots.std().item() == pytest.approx((0.5 / white) ** 0.5, rel=0.02)
    share = (0.01, 0.02, 0.04, 0.08, 0.14)[severity - 1]
    for end in (0, 1):
        assert (struck == end).double().mean().item() == pytest.approx(share / 2, rel=0.08)


@severities
def test_levels_are_as_bright_dark_or_close_as_their_severity_says(severity: int) -> None:
    brighter = min(255, 128 + 255 * (0.1, 0.18, 0.26, 0.34, 0.44)[severity - 1])
    darker = 128 * (0.75, 0.6, 0.45, 0.3, 0.18)[severity - 1]
    for name, level in (("brightness", brighter), ("darkness", darker)):
        assert corrupted(GRAY, name, severity).unique().tolist() == [round(level)]
    halves = GRAY.clone()
    halves[..., :16], halves[..., 16:] = 28, 228
    far = 100 * (0.7, 0.5, 0.35, 0.22, 0.12)[severity - 1]
    levels = corrupted(halves, "contrast", severity).unique().tolist()
    assert levels == pytest.approx([128 - far, 128 + far], abs=0.6)


@pytest.mark.parametrize("severity, side", [(1, 26), (2, 21), (3, 18), (4, 14), (5, 11)])
def test_pixels_are_means_of_their_area(severity: int, side: int) -> None:
    images = torch.randint(256, (5, 3, 32, 32)).to(torch.uint8)
    small = F.adaptive_avg_pool2d(images.float(), side)
    source = torch.arange(32) * side // 32
    expected = small[..., source, :][..., source]
    got = corrupted(images, "pixelate", severity).float()
    assert (got - expected).abs().max() <= 0.5 + 1e-3


def test_a_blur_keeps_what_is_even_and_spreads_a_point_as_a_gaussian() -> None:
    even = torch.full((1, 3, 16, 16), 0.3)
    torch.testing.assert_close(blur(even, 4, torch.Generator()), even)
    point = torch.zeros(1, 1, 64, 64)
    point[0, 0, 32, 32] = 1
    spread = blur(point, 4, torch.Generator())[0, 0]
    places = torch.arange(64.0) - 32
    variance = (spread.sum(0) * places**2).sum().item()
    assert spread.sum().item() == pytest.approx(1, abs=1e-5)
    assert variance == pytest.approx((0.055 * 64) ** 2, rel=0.03)
