"""The operations of AutoAugment and its successors on whole batches, one magnitude per image.

Names, magnitudes and results are those of torchvision.transforms on tensors. Pixel operations match
exactly; geometric operations match up to the rounding of sampling positions. Images are uint8 RGB
(N,3,H,W), magnitudes float64 (N,).
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import autoaugment

from vit_train.config.data import AugmentConfig
from vit_train.config.fields import Size
from vit_train.data.augment import per_image

BOUND = 255
# Maps images and their magnitudes to new images.
Operation = Callable[[Tensor, Tensor], Tensor]


def blend(other: Callable[[Tensor], Tensor], images: Tensor, magnitude: Tensor) -> Tensor:
    """Return f · images + (1 − f) · other(images), clamped to 0…255, with f = 1 + magnitude."""
    factor = 1 + magnitude
    mixed = images * per_image(factor)
    return mixed.add_(other(images) * per_image(1 - factor)).clamp_(0, BOUND).to(torch.uint8)


def gray(images: Tensor) -> Tensor:
    """Compute the luma of ITU-R 601: (N,3,H,W) → uint8 (N,1,H,W)."""
    red, green, blue = images.unbind(1)
    return (0.2989 * red).add_(0.587 * green).add_(0.114 * blue).to(torch.uint8).unsqueeze(1)


def blurred(images: Tensor) -> Tensor:
    """Return the rounded 3×3 mean, with weight 5 for the center; leave border pixels unchanged."""
    wide = images.to(torch.int16)
    rows = wide[..., :-2] + wide[..., 1:-1] + wide[..., 2:]
    box = rows[..., :-2, :] + rows[..., 1:-1, :] + rows[..., 2:, :]
    total = box + 4 * wide[..., 1:-1, 1:-1]
    result = images.clone()
    result[..., 1:-1, 1:-1] = (total / 13).round_().to(torch.uint8)
    return result


def posterize(images: Tensor, magnitude: Tensor) -> Tensor:
    """Keep the n highest bits of each value, where n is the rounded `magnitude`."""
    dropped = 2 ** (8 - magnitude.round().long()) - 1
    return images & per_image(BOUND - dropped, torch.uint8)


def solarize(images: Tensor, magnitude: Tensor) -> Tensor:
    """Invert the pixels whose value is at least `magnitude`."""
    return torch.where(images >= per_image(magnitude), BOUND - images, images)


def autocontrast(images: Tensor, magnitude: Tensor) -> Tensor:
    """Stretch each channel to 0…255; a constant channel is unchanged."""
    pixels = images.flatten(2)
    lowest, highest = (value[..., None, None].float() for value in (pixels.amin(2), pixels.amax(2)))
    constant = lowest == highest
    scale = (BOUND / (highest - lowest)).masked_fill(constant, 1)
    lowest = lowest.masked_fill(constant, 0)
    return ((images - lowest) * scale).clamp_(0, BOUND).to(torch.uint8)


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


PIXEL_OPERATIONS: dict[str, Operation] = {
    "Brightness": partial(blend, lambda images: images.new_zeros(())),
    "Color": partial(blend, gray),
    "Contrast": partial(
        blend, lambda images: gray(images).float().mean(dim=(1, 2, 3), keepdim=True)
    ),
    "Sharpness": partial(blend, blurred),
    "Posterize": posterize,
    "Solarize": solarize,
    "Invert": solarize,  # its magnitude is 0
    "AutoContrast": autocontrast,
    "Equalize": equalize,
}


GEOMETRIC_OPERATIONS = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
OPERATIONS = ("Identity", *PIXEL_OPERATIONS, *GEOMETRIC_OPERATIONS)


class Round(NamedTuple):
    """One operation per image: its index in OPERATIONS, its magnitude, and its affine map.

    Each field is (N,). The affine map takes positions in the new image to positions in the old
    image, in pixels from the center. For operations that are not geometric, the affine map is the
    identity.
    """

    operation: Tensor
    magnitude: Tensor
    xx: Tensor
    xy: Tensor
    x: Tensor
    yx: Tensor
    yy: Tensor
    y: Tensor


def make_round(operation: Tensor, magnitude: Tensor, size: Size) -> Round:
    """Return the round of these operations and magnitudes, with affine maps for images of `size`.

    `size` is a height and a width. Magnitudes have torchvision's units; rotations are in degrees,
    counterclockwise. The arguments must be on the CPU, because a GPU's sine differs.
    """
    one, zero = torch.ones_like(magnitude), torch.zeros_like(magnitude)
    half_height, half_width = (magnitude * side / 2 for side in size)
    shift, angle = -magnitude.trunc(), magnitude.deg2rad()
    cos, sin = angle.cos(), angle.sin()
    rows = (
        (one, magnitude, half_height, zero, one, zero),  # ShearX
        (one, zero, zero, magnitude, one, half_width),  # ShearY
        (one, zero, shift, zero, one, zero),  # TranslateX
        (one, zero, zero, zero, one, shift),  # TranslateY
        (cos, -sin, zero, sin, cos, zero),  # Rotate
    )
    fields: tuple[Tensor, ...] = (one, zero, zero, zero, one, zero)
    for name, row in zip(GEOMETRIC_OPERATIONS, rows, strict=True):
        chosen = operation == OPERATIONS.index(name)
        fields = tuple(torch.where(chosen, new, old) for new, old in zip(row, fields, strict=True))
    return Round(operation, magnitude, *fields)


def resample(images: Tensor, maps: Tensor) -> Tensor:
    """Transform each image by its own affine map (N,2,3), with nearest-neighbor sampling.

    Samples from outside the image are black.
    """
    height, width = images.shape[2:]
    y, x = (torch.arange(side, device=images.device) - (side - 1) / 2 for side in (height, width))
    # The coordinates of grid_sample go from −1 to 1, edge to edge.
    scaled = torch.stack((maps[:, 0].float() / (width / 2), maps[:, 1].float() / (height / 2)), 1)
    along_x, along_y, shift = scaled.view(-1, 2, 3, 1, 1).unbind(2)  # each (N,2,1,1)
    source = along_x * x + (along_y * y.view(-1, 1) + shift)  # (N,2,H,W)
    source = source.permute(0, 2, 3, 1)
    return torch.nn.functional.grid_sample(
        images.float(), source, mode="nearest", align_corners=False
    ).byte()


def apply_round(images: Tensor, drawn: Round) -> Tensor:
    """Apply each image's operation; all geometric operations share one resampling.

    On a GPU, every operation is applied to the whole batch. All shapes are then the same in every
    step, so that a CUDA graph can replay the work and the CPU need not wait to learn how many
    images are affected.
    """
    apply = apply_to_rows if images.device.type == "cpu" else apply_to_all
    moved = drawn.operation > len(PIXEL_OPERATIONS)
    maps = torch.stack(drawn[2:], dim=1).view(-1, 2, 3)
    result = apply(resample, moved, images, maps, images.clone())
    for number, operation in enumerate(PIXEL_OPERATIONS.values(), start=1):
        result = apply(operation, drawn.operation == number, images, drawn.magnitude, result)
    return result


def apply_to_rows(
    operation: Operation, chosen: Tensor, images: Tensor, argument: Tensor, result: Tensor
) -> Tensor:
    """Put operation(images, argument) into the rows of `result` where `chosen` (N,) is True.

    Change `result` in place and return it.
    """
    rows = chosen.nonzero().squeeze(1)
    if len(rows):
        result[rows] = operation(images[rows], argument[rows])
    return result


def apply_to_all(
    operation: Operation, chosen: Tensor, images: Tensor, argument: Tensor, result: Tensor
) -> Tensor:
    """Return the same result as `apply_to_rows`, but apply the operation to every image.

    No shape depends on `chosen`, so a CUDA graph can replay the work.
    """
    return torch.where(per_image(chosen, torch.bool), operation(images, argument), result)


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
