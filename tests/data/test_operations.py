"""torchvision is the oracle: its tensor functions, image by image."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode, autoaugment

from vit_train.config.data import AugmentConfig
from vit_train.config.fields import Size
from vit_train.data import policies as operations
from vit_train.data.policies import (
    OPERATIONS,
    PIXEL_OPERATIONS,
    POLICIES,
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
        for drawn in POLICIES[policy]((16, 16), AugmentConfig()).rounds(rng, 60):
            by_rows = apply_round(images, drawn)
            with monkeypatch.context() as patch:
                patch.setattr(operations, "apply_to_rows", operations.apply_to_all)
                assert torch.equal(apply_round(images, drawn), by_rows)


def drawn(policy: str, count: int, size: int = 32) -> list[Counter[tuple[str, float]]]:
    """How often our policy draws each (operation, magnitude), round by round."""
    rounds = POLICIES[policy]((size, size), AugmentConfig()).rounds(np.random.default_rng(0), count)
    names = np.array(OPERATIONS)
    return [
        Counter(
            zip(names[each.operation], np.round(each.magnitude.numpy(), 4).tolist(), strict=True)
        )
        for each in rounds
    ]


def torchvisions_draws(
    transform: torch.nn.Module, count: int, monkeypatch: pytest.MonkeyPatch
) -> list[list[tuple[str, float]]]:
    """What torchvision applies to each of so many images."""
    applied: list[list[tuple[str, float]]] = []

    def note(image: Tensor, name: str, magnitude: float, *rest: object, **more: object) -> Tensor:
        applied[-1].append((name, round(magnitude, 4)))
        return image

    monkeypatch.setattr(autoaugment, "_apply_op", note)
    image = torch.zeros(3, 32, 32, dtype=torch.uint8)
    torch.manual_seed(0)
    for _ in range(count):
        applied.append([])
        transform(image)
    return applied


def compare(ours: Counter[tuple[str, float]], theirs: Counter[tuple[str, float]], n: int) -> None:
    """Within five standard errors, the same frequencies."""

    def normal(counts: Counter[tuple[str, float]]) -> dict[tuple[str, float], float]:
        merged: Counter[tuple[str, float]] = Counter()
        for (name, magnitude), count in counts.items():
            bits = round(magnitude) if name == "Posterize" else magnitude
            merged[name, bits + 0.0] += count
        return {key: count / counts.total() for key, count in merged.items()}

    a, b = normal(ours), normal(theirs)
    for key in a.keys() | b.keys():
        p, q = a.get(key, 0.0), b.get(key, 0.0)
        assert abs(p - q) < 5 * (max(p, q) / n * 2) ** 0.5, (key, p, q)


def test_randaugment_draws_as_torchvision_does(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2000
    theirs = torchvisions_draws(autoaugment.RandAugment(2, 9), count, monkeypatch)
    for place, ours in enumerate(drawn("randaugment", 20 * count)):
        compare(ours, Counter(each[place] for each in theirs), count)


def test_autoaugment_draws_as_torchvision_does(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2000
    transform = autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy.CIFAR10)
    theirs = Counter(
        each for image in torchvisions_draws(transform, count, monkeypatch) for each in image
    )
    first, second = drawn("autoaugment", 20 * count)
    ours = first + second
    ours = Counter({key: n for key, n in ours.items() if key[0] != "Identity"})
    assert abs(ours.total() / (20 * count) - theirs.total() / count) < 0.05
    compare(ours, theirs, theirs.total())


@pytest.mark.parametrize("size, magnitude", [((16, 48), 20), ((96, 96), 5)])
def test_randaugment_has_torchvisions_magnitudes_at_any_setting(size: Size, magnitude: int) -> None:
    config = AugmentConfig(magnitude=magnitude)
    rounds = POLICIES["randaugment"](size, config).rounds(np.random.default_rng(0), 2000)
    assert len(rounds) == 2
    space = autoaugment.RandAugment()._augmentation_space(31, size)
    for each in rounds:
        assert len(each.operation.unique()) == 14
        for number, drawn in zip(each.operation.tolist(), each.magnitude.tolist(), strict=True):
            table, signed = space[OPERATIONS[number]]
            expected = float(table[magnitude]) if table.ndim else 0.0
            if OPERATIONS[number] == "Posterize":
                drawn = round(drawn)  # as it is applied
            assert (abs(drawn) if signed else drawn) == pytest.approx(expected, abs=1e-4)


def test_autoaugment_shifts_by_a_share_of_the_image() -> None:
    size = (64, 96)
    space = autoaugment.AutoAugment()._augmentation_space(10, size)
    rounds = POLICIES["autoaugment"](size, AugmentConfig()).rounds(np.random.default_rng(0), 5000)
    number = OPERATIONS.index("TranslateX")
    drawn = torch.cat([each.magnitude[each.operation == number] for each in rounds]).abs()
    table, _ = space["TranslateX"]
    assert drawn.unique().tolist() == pytest.approx([table[8].item(), table[9].item()], rel=1e-4)


def test_trivialaugment_draws_every_strength() -> None:
    (each,) = POLICIES["trivialaugment"]((32, 32), AugmentConfig()).rounds(
        np.random.default_rng(0), 20_000
    )
    space = autoaugment.TrivialAugmentWide()._augmentation_space(31)
    for name, (table, has_sign) in space.items():
        drawn = each.magnitude[each.operation == OPERATIONS.index(name)]
        assert 0.9 < len(space) * len(drawn) / 20_000 < 1.1, name
        drawn = drawn.round() if name == "Posterize" else drawn  # as it is applied
        expected = table.double().flatten().unique()
        torch.testing.assert_close(drawn.abs().unique(), expected, rtol=1e-5, atol=1e-5)
        negative = (drawn < 0).sum() / max(1, int((drawn != 0).sum()))
        assert abs(negative - has_sign / 2) < 0.1, name
