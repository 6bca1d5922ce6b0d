"""torchvision is the oracle: its tensor functions, image by image."""

import math
from collections import Counter
from itertools import chain

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode, autoaugment, functional

from vit_train.config.augment import AugmentConfig
from vit_train.config.fields import Size
from vit_train.data import policies as operations
from vit_train.data.augment import Blur, Orientation
from vit_train.data.policies import (
    OPERATIONS,
    PIXEL_OPERATIONS,
    POLICIES,
    ColorJitter,
    apply_round,
    make_round,
)

MAGNITUDES = {
    "Brightness": [-0.9, -0.27, 0.27, 0.99],
    "Color": [-0.9, -0.27, 0.27, 0.99],
    "Contrast": [-0.9, -0.27, 0.27, 0.99],
    "Sharpness": [-0.9, -0.27, 0.27, 0.99],
    "Posterize": [2, 4, 7, 8],
    "Solarize": [0, 77.5, 178.5, 255],
    "ShearX": [-0.99, -0.09, 0.09, 0.3],
    "ShearY": [-0.99, -0.09, 0.09, 0.3],
    "TranslateX": [-32, -4.65, 4.35, 14.5],
    "TranslateY": [-32, -4.65, 4.35, 14.5],
    "Rotate": [-135, -9, 9, 30],
}


def pictures(count: int, height: int, width: int) -> Tensor:
    """Noise, smooth gradients, a constant image, and one with a single odd pixel."""
    generator = torch.Generator().manual_seed(width)
    noise = torch.randint(256, (count, 3, height, width), generator=generator)
    noise[0] = torch.linspace(0, 255, width).long()
    noise[1] = torch.linspace(0, 255, height).long().view(-1, 1) // 2 + 60
    noise[2] = 97
    noise[3] = 200
    noise[3, :, 1, 1] = 13
    return noise.to(torch.uint8)


@pytest.mark.parametrize("size", [(8, 8), (32, 32), (45, 45), (24, 40)])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_torchvisions(name: str, size: Size) -> None:
    images = pictures(24, *size)
    chosen = (MAGNITUDES.get(name, [0.0]) * 24)[:24]
    number = torch.full((24,), OPERATIONS.index(name))
    ours = apply_round(images, make_round(number, torch.tensor(chosen, dtype=torch.float64), size))
    theirs = torch.stack(
        [
            autoaugment._apply_op(image, name, m, InterpolationMode.NEAREST, None)
            for image, m in zip(images, chosen, strict=True)
        ]
    )
    if name in PIXEL_OPERATIONS:
        assert torch.equal(ours, theirs)
    else:  # a sampling position half way between two pixels may round either way
        assert (ours != theirs).any(1).float().mean() < 0.005


def test_the_whole_batch_at_once_gives_the_same_as_only_the_images_concerned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first is what a GPU does."""
    images, rng = pictures(60, 16, 16), np.random.default_rng(0)
    for policy in ("trivialaugment", "autoaugment"):
        for each in POLICIES[policy]((16, 16), AugmentConfig()).rounds(rng, 60):
            by_rows = apply_round(images, each)
            with monkeypatch.context() as patch:
                patch.setattr(operations, "apply_to_rows", operations.apply_to_all)
                assert torch.equal(apply_round(images, each), by_rows)


def drawn(
    policy: str, count: int, size: Size = (32, 32), magnitude: int = 9
) -> list[list[tuple[str, float]]]:
    """The (operation, magnitude) of each image, round by round."""
    made = POLICIES[policy](size, AugmentConfig(magnitude=magnitude))
    return [
        [(OPERATIONS[int(number)], value) for number, value in each[:2].T.tolist()]
        for each in made.rounds(np.random.default_rng(0), count)
    ]


def torchvisions_draws(
    transform: torch.nn.Module, count: int, monkeypatch: pytest.MonkeyPatch
) -> list[list[tuple[str, float]]]:
    """What torchvision applies to each of so many images."""
    applied: list[list[tuple[str, float]]] = []

    def note(image: Tensor, name: str, magnitude: float, *rest: object, **more: object) -> Tensor:
        applied[-1].append((name, magnitude))
        return image

    monkeypatch.setattr(autoaugment, "_apply_op", note)
    image = torch.zeros(3, 32, 32, dtype=torch.uint8)
    torch.manual_seed(0)
    for _ in range(count):
        applied.append([])
        transform(image)
    return applied


def compare(ours: list[tuple[str, float]], theirs: list[tuple[str, float]]) -> None:
    """Within five standard errors, the same frequencies."""

    def shares(draws: list[tuple[str, float]]) -> dict[tuple[str, float], float]:
        counts = Counter((name, round(magnitude, 4) + 0.0) for name, magnitude in draws)
        return {key: count / len(draws) for key, count in counts.items()}

    a, b = shares(ours), shares(theirs)
    for key in a.keys() | b.keys():
        p, q = a.get(key, 0.0), b.get(key, 0.0)
        assert abs(p - q) < 5 * (max(p, q) / len(theirs) * 2) ** 0.5, (key, p, q)


def test_randaugment_draws_as_torchvision_does(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = torchvisions_draws(autoaugment.RandAugment(2, 9), 2000, monkeypatch)
    for place, ours in enumerate(drawn("randaugment", 40_000)):
        compare(ours, [each[place] for each in theirs])


def test_autoaugment_draws_as_torchvision_does(monkeypatch: pytest.MonkeyPatch) -> None:
    transform = autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy.CIFAR10)
    theirs = list(chain(*torchvisions_draws(transform, 2000, monkeypatch)))
    ours = [each for each in chain(*drawn("autoaugment", 40_000)) if each[0] != "Identity"]
    assert abs(len(ours) / 40_000 - len(theirs) / 2000) < 0.05
    compare(ours, theirs)


@pytest.mark.parametrize("size, magnitude", [((16, 48), 20), ((96, 96), 5)])
def test_randaugment_has_torchvisions_magnitudes_at_any_setting(size: Size, magnitude: int) -> None:
    space = autoaugment.RandAugment()._augmentation_space(31, size)
    rounds = drawn("randaugment", 2000, size, magnitude)
    assert len(rounds) == 2
    for each in rounds:
        assert len({name for name, _ in each}) == 14
        for name, value in each:
            table, signed = space[name]
            expected = float(table[magnitude]) if table.ndim else 0.0
            assert (abs(value) if signed else value) == pytest.approx(expected, abs=1e-4)


def test_autoaugment_shifts_by_a_share_of_the_image() -> None:
    table, _ = autoaugment.AutoAugment()._augmentation_space(10, (64, 96))["TranslateX"]
    draws = chain(*drawn("autoaugment", 5000, (64, 96)))
    shifts = {abs(value) for name, value in draws if name == "TranslateX"}
    assert sorted(shifts) == pytest.approx(table[8:].tolist(), rel=1e-4)


def test_trivialaugment_draws_every_strength() -> None:
    (each,) = drawn("trivialaugment", 20_000)
    space = autoaugment.TrivialAugmentWide()._augmentation_space(31)
    for name, (table, has_sign) in space.items():
        values = torch.tensor([value for other, value in each if other == name])
        assert 0.9 < len(space) * len(values) / 20_000 < 1.1, name
        torch.testing.assert_close(values.abs().unique(), table.float().flatten().unique())
        negative = (values < 0).sum() / max(1, int((values != 0).sum()))
        assert abs(negative - has_sign / 2) < 0.1, name


ANGLES = np.linspace(-180, 180, 24)


def test_a_rotation_is_torchvisions_to_one_gray_level() -> None:
    images = pictures(24, 24, 40)
    radians = torch.from_numpy(np.deg2rad(ANGLES))
    matrix = torch.stack((radians.cos(), -radians.sin(), radians.sin(), radians.cos()))
    ours = Orientation(False, 180).apply(images, matrix)
    theirs = torch.stack(
        [
            functional.rotate(image, angle, InterpolationMode.BILINEAR)
            for image, angle in zip(images, ANGLES, strict=True)
        ]
    )
    assert (ours.int() - theirs.int()).abs().max() <= 1


def test_images_without_an_up_are_turned_over_half_the_time_and_by_any_angle() -> None:
    images = pictures(400, 9, 12)
    step = Orientation(True, 0)
    turned = step.apply(images, step.draw(np.random.default_rng(0), torch.arange(400), 0))
    over = (turned == images.flip(2)).flatten(1).all(1)
    assert ((turned == images).flatten(1).all(1) | over).all()
    assert 0.4 < over.float().mean() < 0.6
    a, b, c, d = Orientation(True, 90).draw(np.random.default_rng(0), torch.arange(4000), 0)
    angles = torch.atan2(c, a).rad2deg()
    assert (a * d - b * c).abs().allclose(torch.ones(4000).double())
    assert angles.abs().max() <= 90 and 44 < angles.abs().mean() < 46


def test_color_jitter_is_torchvisions() -> None:
    images = pictures(24, 16, 16)
    step = ColorJitter(0.8)
    drawn = step.draw(np.random.default_rng(0), torch.arange(24), 0)
    assert -0.8 <= drawn.min() < -0.7 and 0.7 < drawn.max() <= 0.8
    theirs = []
    for image, (brightness, contrast, saturation) in zip(images, 1 + drawn.T, strict=True):
        brighter = functional.adjust_brightness(image, brightness)
        harder = functional.adjust_contrast(brighter, contrast)
        theirs.append(functional.adjust_saturation(harder, saturation))
    assert torch.equal(step.apply(images, drawn), torch.stack(theirs))


@pytest.mark.parametrize("widest", [0.4, 1.5])
def test_a_blur_is_torchvisions_to_one_gray_level(widest: float) -> None:
    images = pictures(24, 16, 20)
    step = Blur(widest)
    drawn = step.draw(np.random.default_rng(0), torch.arange(24), 0)
    ours = step.apply(images, drawn)
    size = 2 * math.ceil(3 * widest) + 1
    theirs = torch.stack(
        [
            functional.gaussian_blur(image, [size, size], [float(sigma)])
            for image, sigma in zip(images, drawn[0], strict=True)
        ]
    )
    assert (ours.int() - theirs.int()).abs().max() <= 1
    assert not torch.equal(ours, images)
    assert torch.equal(step.apply(images, torch.zeros(1, 24)), images)
