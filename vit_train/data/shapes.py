"""The built-in data set `shapes`: bright figures on dark textured backgrounds, drawn from a seed.

The class of an image is the kind of its figure. Position, size, rotation, colors, background and
distractors are drawn independently of the class. All drawing is done on batched tensors.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from vit_train.config.data import ShapesConfig
from vit_train.data.dataset import CHUNK_PIXELS, Dataset, ImageSet, require_images_fit

# A figure maps coordinates u and v (n,S,S), in units of its radius, to the approximate distance
# from its edge: negative inside, positive outside.
FIGURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "disc": lambda u, v: torch.hypot(u, v) - 0.9,
    "ring": lambda u, v: (torch.hypot(u, v) - 0.775).abs() - 0.225,
    "square": lambda u, v: torch.maximum(u.abs(), v.abs()) - 0.8,
    # half-planes 120° apart, 0.55 from the center
    "triangle": lambda u, v: torch.maximum(math.sqrt(0.75) * u.abs() - 0.5 * v, v) - 0.55,
    # two bars of half-width 0.27
    "cross": lambda u, v: torch.maximum(
        torch.minimum(u.abs(), v.abs()) - 0.27, torch.maximum(u.abs(), v.abs()) - 1
    ),
    # the radius swings five times between 0.35 and 1.05
    "star": lambda u, v: (torch.hypot(u, v) - 0.7 - 0.35 * torch.cos(5 * torch.atan2(u, v))) * 0.6,
    # a disc minus a second one, shifted by 0.5
    "crescent": lambda u, v: torch.maximum(torch.hypot(u, v) - 1, 0.8 - torch.hypot(u, v + 0.5)),
    "bar": lambda u, v: torch.maximum(u.abs() - 0.28, v.abs() - 1.05),
    # |u| < |v| < 0.85
    "hourglass": lambda u, v: torch.maximum((u.abs() - v.abs()) * math.sqrt(0.5), v.abs() - 0.85),
    # two discs, side by side
    "pair": lambda u, v: torch.hypot(u.abs() - 0.62, v) - 0.42,
}

RADIUS = (0.22, 0.34)  # relative to the image's side
ROTATION = math.pi / 8  # in either direction


def load_shapes(config: ShapesConfig) -> Dataset:
    """Draw the training images and, from another seed, the test images, which also have masks.

    Raise ValueError if the images do not fit into memory.
    """
    size = config.image_size or config.own_size
    require_images_fit(
        config.train_images + config.test_images,
        (size, size),
        f"data.train_images={config.train_images}, data.test_images={config.test_images}, "
        f"data.image_size={size}",
    )
    train = draw(config.train_images, size, config.num_classes, seed=0)
    test = draw(config.test_images, size, config.num_classes, seed=1)
    return Dataset(
        ImageSet(*train[:2]),
        ImageSet(*test),  # test images have masks, to explain predictions for them
        classes=tuple(FIGURES)[: config.num_classes],
    )


def draw(
    count: int, image_size: int = 32, num_classes: int = 10, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw `count` images uint8 (N,3,S,S), balanced labels int64 (N,), figure masks bool (N,S,S).

    The same arguments give the same images.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randperm(count, generator=generator) % num_classes
    images = torch.empty(count, 3, image_size, image_size, dtype=torch.uint8)
    masks = torch.empty(count, image_size, image_size, dtype=torch.bool)
    chunk = max(1, CHUNK_PIXELS // image_size**2)
    for start in range(0, count, chunk):
        part = slice(start, start + chunk)
        images[part], masks[part] = _draw_chunk(labels[part], image_size, generator)
    return images, labels, masks


def _draw_chunk(labels: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw background, distractors, figure and noise, in this order, for the labels (n,).

    Return images uint8 (n,3,S,S), and masks bool (n,S,S) of the figures.
    """
    canvas = _ground(len(labels), size, generator)
    for _ in range(4):  # short strokes, smaller than any object
        u, v, pixel = _coordinates(len(labels), size, math.pi, (0.06, 0.12), generator)
        stroke = _coverage(torch.maximum(u.abs() - 1, v.abs() - 0.25), pixel)
        canvas = _paint(canvas, stroke, 0.35, 0.8, generator)
    u, v, pixel = _coordinates(len(labels), size, ROTATION, RADIUS, generator)
    distance = torch.empty_like(u)
    for label, figure in enumerate(FIGURES.values()):
        members = labels == label
        distance[members] = figure(u[members], v[members])
    coverage = _coverage(distance, pixel)
    canvas = _paint(canvas, coverage, 0.65, 1.0, generator)
    canvas += torch.randn(canvas.shape, generator=generator) * 0.04
    return canvas.mul_(255).round_().clamp_(0, 255).to(torch.uint8), coverage > 0.5


def _uniform(count: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    """Draw `count` uniform random numbers in `low`…`high`, as (n,1,1) to broadcast over pixels."""
    return torch.rand(count, 1, 1, generator=generator) * (high - low) + low


def _ground(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw dark backgrounds with soft clouds and stripes: (n,3,S,S), where 0 is black, 1 white."""
    color = torch.rand(count, 3, 1, 1, generator=generator) * 0.35
    clouds = torch.randn(count, 3, 5, 5, generator=generator) * 0.09
    canvas = color + torch.nn.functional.interpolate(
        clouds, (size, size), mode="bilinear", align_corners=True
    )
    u, _, _ = _coordinates(count, size, math.pi, (0.05, 0.5), generator)
    return canvas + 0.06 * torch.sin(math.pi * u).unsqueeze(1)


def _coordinates(
    count: int, size: int, rotation: float, radius: tuple[float, float], generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Return each pixel's coordinates relative to a figure with random position, rotation and size.

    Return u and v (n,S,S), in units of the figure's radius, with v pointing down, and the width of
    a pixel (n,1,1) in the same unit. `rotation` is the largest angle in radians; `radius` is the
    range of the figure's radius, relative to the image's side. A circle of this radius around the
    figure lies entirely inside the image.
    """
    scale = _uniform(count, *radius, generator) * size
    angle = _uniform(count, -rotation, rotation, generator)
    x0, y0 = (scale + _uniform(count, 0, 1, generator) * (size - 2 * scale) for _ in range(2))
    centers = torch.arange(size) + 0.5
    x = (centers - x0) / scale
    y = (centers.view(-1, 1) - y0) / scale
    u = x * angle.cos() + y * angle.sin()
    v = y * angle.cos() - x * angle.sin()
    return u, v, 1 / scale


def _coverage(distance: Tensor, pixel: Tensor) -> Tensor:
    """Return the share of each pixel that a figure covers: (n,S,S).

    `distance` (n,S,S) is the distance of each pixel from the figure's edge, negative inside the
    figure. `pixel` (n,1,1) is the width of a pixel. The figure's edge fades over the width of one
    pixel.
    """
    return (0.5 - distance / pixel).clamp_(0, 1)


def _paint(
    canvas: Tensor, coverage: Tensor, darkest: float, brightest: float, generator: torch.Generator
) -> Tensor:
    """Paint the covered share of each pixel; return the new canvas (n,3,S,S).

    Each image gets one random color. The color's largest channel is in `darkest`…`brightest`.
    """
    color = torch.rand(len(canvas), 3, 1, 1, generator=generator)
    peak = _uniform(len(canvas), darkest, brightest, generator).unsqueeze(1)
    color = (0.3 + 0.7 * color / color.amax(1, keepdim=True)) * peak
    return torch.lerp(canvas, color, coverage.unsqueeze(1))
