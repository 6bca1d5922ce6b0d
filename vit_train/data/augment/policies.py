"""Augmentation policies: RandAugment, TrivialAugmentWide and AutoAugment.

In each round, a policy draws one operation and its magnitude for each image of a batch, from the
same distribution as torchvision. Strength n selects the n-th of an operation's `bins` magnitudes,
counted from 0.
"""

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import autoaugment

from vit_train.base.setting import Size
from vit_train.data.augment.config import AugmentConfig
from vit_train.data.augment.operations import OPERATIONS, Round, make_round

BINS = 31
CHOICES = [number for number, name in enumerate(OPERATIONS) if name != "Invert"]


class Policy:
    """Base class of the policies; also the policy "none" itself, which applies no operation."""

    num_rounds = 0

    def __init__(self, size: Size, config: AugmentConfig) -> None:
        """Prepare the policy for images of height and width `size`."""

    def rounds(self, rng: np.random.Generator, count: int) -> list[Round]:
        """Draw the operations for `count` images, as rounds in the order of application."""
        return []

    def identity_rounds(self, count: int) -> list[Round]:
        """Return as many rounds as `rounds` does; they leave all images unchanged."""
        zeros = torch.zeros(count, dtype=torch.float64)
        return [make_round(zeros.long(), zeros, (0, 0))] * self.num_rounds


class Magnitudes:
    """A table of each operation's magnitudes, by strength, for images of height and width `size`.

    The arguments from `shear` to `bits` are the magnitudes at the greatest strength: shifts down
    and to the side in pixels, rotations in degrees. `bins` is the number of strengths.
    """

    def __init__(
        self,
        size: Size,
        shear: float,
        shifts: tuple[float, float],
        degrees: float,
        blend: float,
        bits: int,
        bins: int,
    ) -> None:
        signed = {
            "ShearX": shear,
            "ShearY": shear,
            "TranslateX": shifts[1],
            "TranslateY": shifts[0],
            "Rotate": degrees,
            "Brightness": blend,
            "Color": blend,
            "Contrast": blend,
            "Sharpness": blend,
        }
        ends = {name: (0.0, end) for name, end in signed.items()}
        ends |= {"Posterize": (8, bits), "Solarize": (255, 0)}
        table = torch.stack(
            [torch.linspace(*ends.get(name, (0, 0)), bins).double() for name in OPERATIONS]
        )
        negated = torch.tensor([name in signed for name in OPERATIONS]).unsqueeze(1)
        both = torch.stack((table, torch.where(negated, -table, table)))  # (2,operations,bins)
        numbers = torch.arange(len(OPERATIONS)).view(1, -1, 1).expand_as(both)
        _, *values = make_round(numbers.flatten(), both.flatten(), size)
        # The draws of a round for one image, by sign, operation and strength.
        self.table = torch.stack(values, dim=1).view(*both.shape, -1)

    def round(self, operation: Tensor, strength: Tensor | int, rng: np.random.Generator) -> Round:
        """Return the round that applies to each image its `operation` (B,) at its `strength`.

        `strength` is one integer for all images, or (B,). Magnitudes that have a sign, such as
        angles, are negated with probability ½.
        """
        negated = torch.from_numpy(rng.random(len(operation)) < 0.5).long()
        return Round(operation, *self.table[negated, operation, strength].unbind(1))


def moderate(size: Size, bins: int) -> Magnitudes:
    """Return the magnitudes of RandAugment and AutoAugment.

    The largest shift is 150/331 of the image's height or width, as in torchvision.
    """
    height, width = size
    shifts = (150 / 331 * height, 150 / 331 * width)
    return Magnitudes(size, shear=0.3, shifts=shifts, degrees=30, blend=0.9, bits=4, bins=bins)


def any_operation(rng: np.random.Generator, count: int) -> Tensor:
    return torch.from_numpy(rng.choice(CHOICES, count))


class RandAugment(Policy):
    """Two of 14 operations at equal strength (Cubuk et al. 2019, arXiv:1909.13719)."""

    num_rounds = 2

    def __init__(self, size: Size, config: AugmentConfig) -> None:
        self.strength = config.magnitude
        self.magnitudes = moderate(size, BINS)

    def rounds(self, rng: np.random.Generator, count: int) -> list[Round]:
        return [
            self.magnitudes.round(any_operation(rng, count), self.strength, rng)
            for _ in range(self.num_rounds)
        ]


class TrivialAugment(Policy):
    """One operation at random strength (Müller & Hutter 2021, arXiv:2103.10158).

    The ranges of the magnitudes are wide ("TrivialAugmentWide").
    """

    num_rounds = 1

    def __init__(self, size: Size, config: AugmentConfig) -> None:
        self.magnitudes = Magnitudes(
            size, shear=0.99, shifts=(32, 32), degrees=135, blend=0.99, bits=2, bins=BINS
        )

    def rounds(self, rng: np.random.Generator, count: int) -> list[Round]:
        operation = any_operation(rng, count)
        strength = torch.from_numpy(rng.integers(BINS, size=count))
        return [self.magnitudes.round(operation, strength, rng)]


class AutoAugment(Policy):
    """One of 25 learned pairs of operations (Cubuk et al. 2019, arXiv:1805.09501, table 7)."""

    num_rounds = 2

    def __init__(self, size: Size, config: AugmentConfig) -> None:
        self.magnitudes = moderate(size, bins=10)
        # Each operation with its probability and, if it has one, its strength, 0…9; all have shape
        # (25,2).
        pairs = autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy.CIFAR10).policies
        self.operation = torch.tensor([[OPERATIONS.index(name) for name, _, _ in p] for p in pairs])
        self.chance = torch.tensor([[chance for _, chance, _ in pair] for pair in pairs])
        self.strength = torch.tensor([[number or 0 for _, _, number in pair] for pair in pairs])

    def rounds(self, rng: np.random.Generator, count: int) -> list[Round]:
        pair = torch.from_numpy(rng.integers(len(self.operation), size=count))
        rounds = []
        for place in range(self.num_rounds):
            happens = torch.from_numpy(rng.random(count)) < self.chance[pair, place]
            operation = self.operation[pair, place].where(happens, OPERATIONS.index("Identity"))
            rounds.append(self.magnitudes.round(operation, self.strength[pair, place], rng))
        return rounds


POLICIES: dict[str, type[Policy]] = {
    "none": Policy,
    "randaugment": RandAugment,
    "trivialaugment": TrivialAugment,
    "autoaugment": AutoAugment,
}
