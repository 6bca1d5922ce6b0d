"""The operations of AutoAugment and its successors on whole batches, one magnitude per image.

Names, magnitudes and results are those of torchvision.transforms on tensors. Pixel operations match
exactly; geometric operations match up to the rounding of sampling positions. Images are uint8 RGB
(N,3,H,W), magnitudes float64 (N,).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.transforms import autoaugment, functional

from vit_train.config.augment import AugmentConfig
from vit_train.config.fields import Size
from vit_train.data.augment import per_image, resample

BOUND = 255
# Of each operation, its magnitudes by strength, and True if half of them are negated.
Space = Mapping[str, tuple[Tensor, bool]]
# Maps images and their magnitudes to new images.
Operation = Callable[[Tensor, Tensor], Tensor]


def blend(other: Callable[[Tensor], Tensor], images: Tensor, magnitude: Tensor) -> Tensor:
    """Return f · images + (1 − f) · other(images), clamped to 0…255, with f = 1 + magnitude."""
    factor = 1 + magnitude
    mixed = images * per_image(factor)
    return mixed.add_(other(images) * per_image(1 - factor)).clamp_(0, BOUND).to(torch.uint8)


def blurred(images: Tensor) -> Tensor:
    """Return the rounded 3×3 mean, with weight 5 for the center; leave border pixels unchanged."""
    box = F.avg_pool2d(images.float(), 3, stride=1, divisor_override=1)
    result = images.clone()
    inner = result[..., 1:-1, 1:-1]
    inner.copy_(((box + 4.0 * inner) / 13).round_())
    return result


def posterize(images: Tensor, magnitude: Tensor) -> Tensor:
    """Keep the n highest bits of each value, where n is the `magnitude`."""
    dropped = 2 ** (8 - magnitude.long()) - 1
    return images & per_image(BOUND - dropped, torch.uint8)


def solarize(images: Tensor, magnitude: Tensor) -> Tensor:
    """Invert the pixels whose value is at least `magnitude`."""
    return torch.where(images >= per_image(magnitude), BOUND - images, images)


def equalize(images: Tensor, magnitude: Tensor) -> Tensor:
    """Spread each channel's values so that their histogram becomes flat.

    Let h be the histogram, m the greatest value that occurs and q = ⌊(Σh − h[m]) / 255⌋. A value
    v becomes ⌊(Σ_{u<v} h[u] + ⌊q/2⌋) / q⌋. A channel with q = 0 is unchanged.
    """
    pixels = images.flatten(2).flatten(0, 1).long()  # (N·C, H·W)
    levels = torch.arange(BOUND + 1, device=images.device)
    # All histograms as one: scatter_add_ in one dimension is deterministic on a GPU, too.
    rows = torch.arange(len(pixels), device=images.device).unsqueeze(1) * len(levels)
    counts = levels.new_zeros(len(pixels) * len(levels))
    counts.scatter_add_(0, (pixels + rows).flatten(), levels.new_ones(()).expand(pixels.numel()))
    counts = counts.view(len(pixels), -1)
    greatest = counts.gather(1, pixels.amax(1, keepdim=True))
    step = (pixels.shape[1] - greatest) // BOUND
    below = counts.cumsum(1) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp_(max=BOUND)
    table = torch.where(step > 0, table, levels)
    return table.to(torch.uint8).gather(1, pixels).view_as(images)


def mean_gray(images: Tensor) -> Tensor:
    """Return the mean of each image's luma, (N,1,1,1)."""
    gray: Tensor = functional.rgb_to_grayscale(images)
    return gray.float().mean(dim=(1, 2, 3), keepdim=True)


PIXEL_OPERATIONS: dict[str, Operation] = {
    "Brightness": partial(blend, lambda images: images.new_zeros(())),
    "Color": partial(blend, functional.rgb_to_grayscale),
    "Contrast": partial(blend, mean_gray),
    "Sharpness": partial(blend, blurred),
    "Posterize": posterize,
    "Solarize": solarize,
    "Invert": solarize,  # its magnitude is 0
    "AutoContrast": lambda images, _: functional.autocontrast(images),
    "Equalize": equalize,
}


GEOMETRIC_OPERATIONS = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
OPERATIONS = ("Identity", *PIXEL_OPERATIONS, *GEOMETRIC_OPERATIONS)
# In a round, each image gets one operation. The number of a round's draws for one image; see
# `make_round`.
ROUND = 8


def make_round(operation: Tensor, magnitude: Tensor, size: Size) -> Tensor:
    """Return the draws (8,N) of one operation per image, for images of height and width `size`.

    They are the operation's index in OPERATIONS, its magnitude, and the six numbers of an affine
    map, which takes positions in the new image to positions in the old image, in pixels from the
    center. For operations that are not geometric, the map is the identity. Magnitudes have
    torchvision's units; rotations are in degrees, counterclockwise. The arguments must be on the
    CPU, because a GPU's sine differs.
    """
    shear_x, shear_y, shift_x, shift_y, turn = (
        magnitude.where(operation == OPERATIONS.index(name), 0) for name in GEOMETRIC_OPERATIONS
    )
    height, width = size
    sin = turn.deg2rad().sin()
    cos = turn.deg2rad().cos()
    to_x = cos, shear_x - sin, shear_x * height / 2 - shift_x.trunc()
    to_y = shear_y + sin, cos, shear_y * width / 2 - shift_y.trunc()
    return torch.stack((operation, magnitude, *to_x, *to_y))


def apply_round(images: Tensor, drawn: Tensor) -> Tensor:
    """Apply each image's operation, drawn as (8,N); geometric operations share one resampling.

    On a GPU, every operation is applied to the whole batch. All shapes are then the same in every
    step, so that a CUDA graph can replay the work and the CPU need not wait to learn how many
    images are affected.
    """
    apply = apply_to_rows if images.device.type == "cpu" else apply_to_all
    number, magnitude = drawn[:2]
    result = apply(resample, number > len(PIXEL_OPERATIONS), images, drawn[2:].T, images.clone())
    for index, operation in enumerate(PIXEL_OPERATIONS.values(), start=1):
        result = apply(operation, number == index, images, magnitude, result)
    return result


def apply_to_rows(
    operation: Operation, chosen: Tensor, images: Tensor, argument: Tensor, result: Tensor
) -> Tensor:
    """Put operation(images, argument) into the rows of `result` where `chosen` (N,) is True.

    Change `result` in place and return it.
    """
    if chosen.any():
        result[chosen] = operation(images[chosen], argument[chosen])
    return result


def apply_to_all(
    operation: Operation, chosen: Tensor, images: Tensor, argument: Tensor, result: Tensor
) -> Tensor:
    """Return the same result as `apply_to_rows`, but apply the operation to every image.

    No shape depends on `chosen`, so a CUDA graph can replay the work.
    """
    return torch.where(per_image(chosen, torch.bool), operation(images, argument), result)


@dataclass
class ColorJitter:
    """Scales brightness, contrast and saturation, in this order, by factors in 1 ± `strength`."""

    strength: float

    rows = 3

    def draw(self, rng: np.random.Generator, index: Tensor, epoch: int) -> Tensor:
        return torch.from_numpy(rng.uniform(-self.strength, self.strength, (3, len(index))))

    def apply(self, images: Tensor, magnitudes: Tensor) -> Tensor:
        for name, magnitude in zip(("Brightness", "Contrast", "Color"), magnitudes, strict=True):
            images = PIXEL_OPERATIONS[name](images, magnitude)
        return images


# Number of strengths in the tables of RandAugment and TrivialAugment.
STRENGTHS = 31
CHOICES = [number for number, name in enumerate(OPERATIONS) if name != "Invert"]


class Policy(ABC):
    """Base class of the policies, which apply `num_rounds` operations, one after the other.

    From epoch `policy_epochs` on, all images stay unchanged.
    """

    num_rounds: int

    def __init__(self, size: Size, config: AugmentConfig) -> None:
        space = self.space(size)
        bins = max(values.numel() for values, _ in space.values())
        magnitudes = torch.zeros(2, len(OPERATIONS), bins, dtype=torch.float64)
        for name, (values, is_signed) in space.items():
            magnitudes[0, OPERATIONS.index(name)] = values
            magnitudes[1, OPERATIONS.index(name)] = -values if is_signed else values
        numbers = torch.arange(len(OPERATIONS)).view(1, -1, 1).expand_as(magnitudes)
        drawn = make_round(numbers.flatten(), magnitudes.flatten(), size)
        # The draws of a round for one image, by sign, operation and strength.
        self.table = drawn.T.view(*magnitudes.shape, ROUND)
        self.rows = ROUND * self.num_rounds
        self.strength = config.magnitude
        self.epochs = config.policy_epochs or math.inf

    @abstractmethod
    def space(self, size: Size) -> Space:
        """Return torchvision's table: for each operation, its magnitudes by strength and a flag.

        If the flag is True, the magnitudes, such as angles, are negated with probability ½.
        """

    @abstractmethod
    def rounds(self, rng: np.random.Generator, count: int) -> Iterator[Tensor]:
        """Draw the operations for `count` images: the draws (8,N) of each round."""

    def round(self, operation: Tensor, strength: Tensor | int, rng: np.random.Generator) -> Tensor:
        """Return the round that applies to each image its `operation` (N,) at its `strength`."""
        negated = torch.from_numpy(rng.random(len(operation)) < 0.5).long()
        return self.table[negated, operation, strength].T

    def draw(self, rng: np.random.Generator, index: Tensor, epoch: int) -> Tensor:
        if epoch >= self.epochs:
            return self.table[0, 0, 0].repeat(len(index), self.num_rounds).T  # Identity
        return torch.cat(list(self.rounds(rng, len(index))))

    def apply(self, images: Tensor, drawn: Tensor) -> Tensor:
        for each in drawn.split(ROUND):
            images = apply_round(images, each)
        return images


class RandAugment(Policy):
    """Two of 14 operations at equal strength (Cubuk et al. 2019, arXiv:1909.13719)."""

    num_rounds = 2

    def space(self, size: Size) -> Space:
        return autoaugment.RandAugment()._augmentation_space(STRENGTHS, size)  # type: ignore[no-any-return]

    def rounds(self, rng: np.random.Generator, count: int) -> Iterator[Tensor]:
        for _ in range(self.num_rounds):
            operation = torch.from_numpy(rng.choice(CHOICES, count))
            yield self.round(operation, self.strength, rng)


class TrivialAugment(Policy):
    """One operation at random strength (Müller & Hutter 2021, arXiv:2103.10158).

    The ranges of the magnitudes are wide ("TrivialAugmentWide").
    """

    num_rounds = 1

    def space(self, size: Size) -> Space:
        return autoaugment.TrivialAugmentWide()._augmentation_space(STRENGTHS)  # type: ignore[no-any-return]

    def rounds(self, rng: np.random.Generator, count: int) -> Iterator[Tensor]:
        operation = torch.from_numpy(rng.choice(CHOICES, count))
        yield self.round(operation, torch.from_numpy(rng.integers(STRENGTHS, size=count)), rng)


class AutoAugment(Policy):
    """One of 25 learned pairs of operations (Cubuk et al. 2019, arXiv:1805.09501, table 7)."""

    num_rounds = 2
    theirs = autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy.CIFAR10)
    # Each operation's index, its probability and, if it has one, its strength, 0…9: (25,2,3).
    pairs = torch.tensor(
        [
            [(OPERATIONS.index(name), chance, strength or 0) for name, chance, strength in pair]
            for pair in theirs.policies
        ]
    )

    def space(self, size: Size) -> Space:
        return self.theirs._augmentation_space(10, size)  # type: ignore[no-any-return]

    def rounds(self, rng: np.random.Generator, count: int) -> Iterator[Tensor]:
        chosen = self.pairs[rng.integers(len(self.pairs), size=count)]  # (N,2,3)
        for operation, chance, strength in chosen.permute(1, 2, 0):
            happens = torch.from_numpy(rng.random(count)) < chance
            yield self.round((operation * happens).long(), strength.long(), rng)  # or 0, Identity


POLICIES: dict[str, type[Policy]] = {
    "randaugment": RandAugment,
    "trivialaugment": TrivialAugment,
    "autoaugment": AutoAugment,
}
