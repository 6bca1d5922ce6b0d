"""torchvision is the oracle for fixed draws, and for how they are distributed."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode, RandomErasing, RandomResizedCrop, functional
from torchvision.transforms import v2 as transforms

from vit_train.config.augment import AugmentConfig
from vit_train.config.fields import Size
from vit_train.data.augment import (
    CROP_ASPECTS,
    Erasing,
    Mixer,
    ResizedCrop,
    random_rectangles,
)

SIZE, COUNT = 24, 5000
SQUARE, WIDE = (24, 24), (24, 40)


def test_a_resized_crop_is_torchvisions_to_one_gray_level() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (5, 3, *WIDE), generator=generator).to(torch.uint8)
    rows = [(0, 0, 24, 40), (3, 5, 10, 13), (0, 11, 24, 13), (20, 36, 4, 4), (7, 0, 1, 9)]
    ours = ResizedCrop(WIDE, 1.0).apply(images, torch.tensor(rows).T)
    for image, box, result in zip(images, rows, ours, strict=True):
        theirs = functional.resized_crop(
            image, *box, [*WIDE], InterpolationMode.BILINEAR, antialias=True
        )
        assert (result.int() - theirs.int()).abs().max() <= 1
    assert torch.equal(ours[0], images[0])


def drawn(step: ResizedCrop | Erasing | Mixer, epoch: int = 0) -> Tensor:
    return step.draw(np.random.default_rng(0), torch.arange(COUNT), epoch)


def moments(values: list[float]) -> Tensor:
    values_ = torch.tensor(values, dtype=torch.float64)
    return torch.stack((values_.mean(), values_.std()))


@pytest.mark.parametrize("share", [(0.08, 1.0), (0.5, 1.0)])
def test_crops_are_distributed_as_torchvisions(share: tuple[float, float]) -> None:
    boxes, _ = random_rectangles(np.random.default_rng(0), COUNT, SQUARE, share, CROP_ASPECTS)
    torch.manual_seed(0)
    image = torch.zeros(3, SIZE, SIZE)
    theirs = zip(
        *(RandomResizedCrop.get_params(image, share, CROP_ASPECTS) for _ in range(COUNT)),
        strict=True,
    )
    for ours, other in zip(boxes, theirs, strict=True):
        torch.testing.assert_close(moments(ours.tolist()), moments(other), rtol=0.03, atol=0.1)


def test_crops_and_erased_rectangles_are_as_long_as_torchvisions() -> None:
    """With the aspect ratios that torchvision has by default."""
    image, count = torch.zeros(3, SIZE, SIZE), 1000
    crop, erase = RandomResizedCrop(SIZE), RandomErasing(scale=(0.02, 0.33))
    crops = [crop.get_params(image, [0.2, 1.0], crop.ratio)[2:] for _ in range(count)]
    holes = [erase.get_params(image, erase.scale, erase.ratio, [0])[2:4] for _ in range(count)]
    for step, theirs in ((ResizedCrop(SQUARE, 0.2), crops), (Erasing(SQUARE, 1.0), holes)):
        height, width = torch.tensor(theirs).unbind(1)
        ours = drawn(step)
        torch.testing.assert_close(
            moments((ours[2] / ours[3]).log().tolist()),
            moments((height / width).log().tolist()),
            rtol=0.05,
            atol=0.03,
        )


def test_a_rectangle_may_be_one_pixel_wide() -> None:
    boxes, _ = random_rectangles(np.random.default_rng(0), 1000, (8, 8), (0.02, 0.1), (0.3, 3.3), 1)
    assert boxes[2].min() == boxes[3].min() == 1


def test_erased_rectangles_are_distributed_as_torchvisions_and_become_0() -> None:
    erasing = Erasing(SQUARE, 0.25)
    images = erasing.apply(torch.ones(COUNT, 3, SIZE, SIZE), drawn(erasing))
    torch.manual_seed(0)
    transform = RandomErasing(0.25, (0.02, 0.33))
    theirs = torch.stack([transform(torch.ones(3, SIZE, SIZE)) for _ in range(COUNT)])
    for erased in (images == 0, theirs == 0):
        assert torch.equal(erased.all(1), erased.any(1))  # all channels alike
    ours, other = ((x == 0).float().mean((1, 2, 3)) for x in (images, theirs))
    assert abs((ours > 0).float().mean() - 0.25) < 0.02
    torch.testing.assert_close(
        moments(ours[ours > 0].tolist()), moments(other[other > 0].tolist()), rtol=0.06, atol=0
    )
    # A place is erased as often as there.
    torch.testing.assert_close(
        (images == 0).float().mean((0, 1)), (theirs == 0).float().mean((0, 1)), rtol=0, atol=0.03
    )


def mixer(size: Size = SQUARE, **config: Any) -> Mixer:
    return Mixer(size, 7, AugmentConfig(**config))


def batch(count: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count, 3, *WIDE, generator=generator)
    return images, torch.randint(7, (count,), generator=generator)


def mix(drawn: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images and their labels, and both mixed as `drawn` (6,), each image with the one before."""
    images, labels = batch()
    around = torch.arange(-1, len(images))
    rows = drawn.double().unsqueeze(1).expand(-1, len(around))
    mixed = mixer(WIDE, mixup_alpha=1.0).mix(images[around], labels[around], rows)
    return (images, labels), mixed


def test_mixup_with_a_given_share_is_torchvisions() -> None:
    own, ours = mix(torch.tensor([0.3, 0.3, 0, 0, 0, 0], dtype=torch.float64))
    oracle = transforms.MixUp(num_classes=7)
    oracle._dist = torch.distributions.Uniform(0.3, 0.3 + 1e-9, validate_args=False)
    torch.testing.assert_close(ours, tuple(oracle(*own)), rtol=0, atol=1e-6)


def test_cutmix_with_a_given_rectangle_is_torchvisions() -> None:
    own, ours = mix(torch.tensor([1, 0, 2, 4, 22, 31]))
    oracle = transforms.CutMix(num_classes=7)
    oracle.make_params = lambda _: {"box": (4, 2, 35, 24), "lam_adjusted": 1 - 31 * 22 / 960}
    torch.testing.assert_close(ours, tuple(oracle(*own)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.2, 1.0])
def test_shares_are_beta_distributed_and_drawn_per_image(alpha: float) -> None:
    outside, inside, *_ = drawn(mixer(mixup_alpha=alpha))
    assert torch.equal(outside, inside) and len(outside.unique()) > 2000
    variance = 1 / (4 * (2 * alpha + 1))
    expected = torch.tensor([0.5, variance**0.5], dtype=torch.float64)
    torch.testing.assert_close(moments(outside.tolist()), expected, rtol=0, atol=0.02)


def test_rectangles_of_cutmix_are_distributed_as_torchvisions() -> None:
    top, left, height, width = drawn(mixer(WIDE, cutmix_alpha=1.0))[2:]
    oracle = transforms.CutMix(num_classes=7)
    torch.manual_seed(0)
    parameters = [oracle.make_params([torch.zeros(2, 3, *WIDE)]) for _ in range(COUNT)]
    x1, y1, x2, y2 = zip(*(p["box"] for p in parameters), strict=True)
    for ours, theirs in ((top, y1), (left, x1), (top + height, y2), (left + width, x2)):
        torch.testing.assert_close(moments(ours.tolist()), moments(theirs), rtol=0.04, atol=0.1)


def test_each_kind_of_mixing_has_its_own_alpha() -> None:
    """Mixup's makes shares of nearly 0 or 1 here, CutMix's of nearly a half."""
    outside, inside, _, _, height, width = drawn(mixer(mixup_alpha=0.001, cutmix_alpha=1e6))
    cut = inside != outside
    share = outside[~cut]
    assert ((share < 0.01) | (share > 0.99)).double().mean() > 0.95
    side = 2 * int(0.5 * 0.5**0.5 * SIZE)
    assert height[cut].max() == width[cut].max() == side
    assert (outside[cut] == 1).all() and (inside[cut] == 0).all()
    assert abs(cut.double().mean() - 0.5) < 0.03


@pytest.mark.parametrize("chance, epoch, share", [(0.0, 0, 0), (0.2, 1, 0.2), (1, 1, 1), (1, 2, 0)])
def test_so_many_images_are_mixed_as_asked_for(chance: float, epoch: int, share: float) -> None:
    outside = drawn(mixer(mixup_alpha=1.0, mix_prob=chance, mix_epochs=2), epoch)[0]
    assert abs((outside < 1).double().mean() - share) < 0.02


@pytest.mark.parametrize("scale", [0.3, 0.8])
def test_a_crop_has_the_share_that_is_asked_for(scale: float) -> None:
    top, left, height, width = drawn(ResizedCrop(WIDE, scale))
    area = (height * width) / 960
    assert scale - 0.06 < area.min() < scale + 0.02 and area.max() <= 1
    assert ((top + height).max(), (left + width).max()) == WIDE


def test_crops_of_a_rectangle_have_its_shape_on_average() -> None:
    """Those of (24,40) are the square's, stretched; so are erased rectangles."""
    for step in (ResizedCrop(WIDE, 0.2), Erasing(WIDE, 1.0)):
        _, _, height, width = drawn(step)
        aspect = (height / width).log().mean().exp().item()
        assert aspect == pytest.approx(24 / 40, rel=0.03)


def test_where_no_rectangle_fits_nothing_is_erased() -> None:
    """Of the area of a fifth of a pixel."""
    rng = np.random.default_rng(0)
    assert not random_rectangles(rng, 100, (3, 3), (0.02, 0.02), (0.3, 3.3), 1)[1].any()
    erasing = Erasing((1, 1), 1.0)
    assert erasing.apply(torch.ones(COUNT, 3, 1, 1), drawn(erasing)).all()
