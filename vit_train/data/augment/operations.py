"""The operations of AutoAugment and its successors on whole batches, one magnitude per image.

Names, magnitudes and results are those of torchvision.transforms (its tensor path): the pixel
operations exactly, the geometric ones up to the rounding of a sampling position. Images are uint8
RGB (N,3,S,S); magnitudes are float64 (N,) on the CPU, where what depends on them alone is computed.
"""

from collections.abc import Callable

import torch
from torch import Tensor

BOUND = 255


def per_image(values: Tensor, images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """(N,) → (N,1,1,1) beside the images."""
    return values.to(dtype).view(-1, 1, 1, 1).to(images.device, non_blocking=True)


def blend(images: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    """factor · images + (1 − factor) · other, cut off at 0 and 255."""
    mixed = images * per_image(factor, images)
    return mixed.add_(other * per_image(1 - factor, images)).clamp_(0, BOUND).to(torch.uint8)


def grey(images: Tensor) -> Tensor:
    """The luma of ITU-R 601: (N,3,S,S) → uint8 (N,1,S,S)."""
    red, green, blue = images.unbind(1)
    return (0.2989 * red).add_(0.587 * green).add_(0.114 * blue).to(torch.uint8).unsqueeze(1)


def blurred(images: Tensor) -> Tensor:
    """The 3×3 mean in which the centre counts five times, rounded; the border stays."""
    wide = images.to(torch.int16)
    rows = wide[..., :-2] + wide[..., 1:-1] + wide[..., 2:]
    box = rows[..., :-2, :] + rows[..., 1:-1, :] + rows[..., 2:, :]
    total = box + 4 * wide[..., 1:-1, 1:-1]
    result = images.clone()
    result[..., 1:-1, 1:-1] = (total / 13).round_().to(torch.uint8)
    return result


def identity(images: Tensor, magnitude: Tensor) -> Tensor:
    return images


def brightness(images: Tensor, magnitude: Tensor) -> Tensor:
    return (images * per_image(1 + magnitude, images)).clamp_(0, BOUND).to(torch.uint8)


def color(images: Tensor, magnitude: Tensor) -> Tensor:
    return blend(images, grey(images), 1 + magnitude)


def contrast(images: Tensor, magnitude: Tensor) -> Tensor:
    mean = grey(images).float().mean(dim=(1, 2, 3), keepdim=True)
    return blend(images, mean, 1 + magnitude)


def sharpness(images: Tensor, magnitude: Tensor) -> Tensor:
    return blend(images, blurred(images), 1 + magnitude)


def posterize(images: Tensor, magnitude: Tensor) -> Tensor:
    """Keep the highest `magnitude` bits."""
    dropped = 2 ** (8 - magnitude.long()) - 1
    return images & per_image(BOUND - dropped, images, torch.uint8)


def solarize(images: Tensor, magnitude: Tensor) -> Tensor:
    """Invert the pixels of at least `magnitude`."""
    return torch.where(images >= per_image(magnitude, images), BOUND - images, images)


def invert(images: Tensor, magnitude: Tensor) -> Tensor:
    return BOUND - images


def autocontrast(images: Tensor, magnitude: Tensor) -> Tensor:
    """Stretch each channel to 0…255; a constant channel stays."""
    lowest, highest = images.aminmax_over_pixels() if False else extremes(images)
    flat = highest == lowest
    scale = BOUND / (highest - lowest).masked_fill(flat, BOUND)
    lowest = lowest.masked_fill(flat, 0)
    return ((images - lowest) * scale).clamp_(0, BOUND).to(torch.uint8)


def extremes(images: Tensor) -> tuple[Tensor, Tensor]:
    """Each channel's least and greatest value: two float32 (N,C,1,1)."""
    pixels = images.flatten(2)
    return pixels.amin(2)[..., None, None].float(), pixels.amax(2)[..., None, None].float()


def equalize(images: Tensor, magnitude: Tensor) -> Tensor:
    """Spread each channel's values so that their histogram becomes flat.

    With h the histogram and q = ⌊(Σh − h[greatest]) / 255⌋, a value v becomes
    ⌊(Σ_{u<v} h[u] + ⌊q/2⌋) / q⌋; a channel with q = 0 stays.
    """
    pixels = images.flatten(2).flatten(0, 1).long()  # (N·C, S·S)
    counts = torch.zeros(len(pixels), BOUND + 1, dtype=torch.long, device=images.device)
    counts.scatter_add_(
        1, pixels, torch.ones((), dtype=torch.long, device=images.device).expand_as(pixels)
    )
    greatest = counts.gather(1, pixels.amax(1, keepdim=True))
    step = (pixels.shape[1] - greatest) // BOUND
    below = counts.cumsum(1) - counts
    table = (below + step // 2) // step.clamp(min=1)
    table = torch.where(
        step > 0, table.clamp_(0, BOUND), torch.arange(BOUND + 1, device=images.device)
    )
    return table.to(torch.uint8).gather(1, pixels).view_as(images)


PIXEL_OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Identity": identity,
    "Brightness": brightness,
    "Color": color,
    "Contrast": contrast,
    "Sharpness": sharpness,
    "Posterize": posterize,
    "Solarize": solarize,
    "Invert": invert,
    "AutoContrast": autocontrast,
    "Equalize": equalize,
}
