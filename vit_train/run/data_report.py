"""`vit-data`: the images of each split, and faults to repair before training."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from statistics import mean

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vit_train.base.log import logger
from vit_train.base.text import CLASS_NAME, counted, csv_text, printable, shortened
from vit_train.base.writing import write_text
from vit_train.config.data import DataConfig, FolderConfig
from vit_train.config.fields import Size
from vit_train.config.tools import DataReportConfig
from vit_train.data.dataset import Dataset, ImageSet, load_dataset, resize
from vit_train.data.decode import SWAPS, is_flat, turn_of
from vit_train.data.image_files import FORMATS, bulleted
from vit_train.data.splits import make_splits
from vit_train.figures.charts import Figure, save
from vit_train.figures.images import Labeled, cut_to_fit, draw_sheet, name_line
from vit_train.trained.folder import run_at

# The problems of pairs of copies, and the number of pairs of each to draw.
COPIES = (
    "one picture with two labels",
    "one picture in two splits",
    "one picture twice in a split",
)
DRAWN = 24
COLUMNS = ("problem", "split", "image", "label", "copy_split", "copy_image", "copy_label", "detail")


def report_data(config: DataReportConfig) -> None:
    """Print the numbers of images and the faults of a data set; write all faults to config.out."""
    data = config.data
    if isinstance(data, FolderConfig):
        data = replace(
            data,
            on_error="skip",
            split_as=data.split_as and str(run_at(Path(data.split_as))),
        )
    loaded = load_dataset(data)
    parts = make_splits(loaded, data).parts
    if data.val != "split":  # with data.val=test, these are the test images
        parts.pop("val", None)
    logger.info(class_counts(parts, loaded.classes))
    sides = [side for split, part in parts.items() for side in file_sides(split, part, data)]
    found = faults(loaded, parts, sides)
    for problem, rows in found.items():
        logger.info(f"{problem}: {len(rows):,}{bulleted([as_line(*row) for row in rows])}")
    table = [(problem, *row) for problem, rows in found.items() for row in rows]
    out = Path(config.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, csv_text([COLUMNS, *table]))
    if any(found[problem] for problem in COPIES):
        picture = out.with_name(f"{out.stem}_copies.png")
        save(draw_copies(found, parts), picture)
        logger.info(f"pictures of the pairs written to {picture}")
    logger.info(f"all {counted(len(table), 'fault')} of {data.title} written to {out}")


def file_sides(split: str, part: ImageSet, data: DataConfig) -> list[int]:
    """Return the shorter side of each image, without any enlargement; log the sizes of files."""
    shown = min(part.images.shape[2:])
    if not isinstance(data, FolderConfig):
        return [shown] * len(part)
    found = sizes([Path(data.root, name) for name in part.all_names])
    logger.info(f"{split} files: {in_words(found)}")
    return [min(*size, shown) for size in found]


def class_counts(parts: Mapping[str, ImageSet], classes: Sequence[str]) -> str:
    """Format a table with the number of images of each class in each split."""
    names = [shortened(name, CLASS_NAME) for name in classes]
    counts = [part.class_counts(len(names)) for part in parts.values()]
    rows = [
        ("class", *parts),
        *zip(names, *counts, strict=True),
        ("all", *map(len, parts.values())),
    ]
    width = max(len(str(name)) for name, *_ in rows)
    return "\n".join(
        f"{name:<{width}}" + "".join(f"{number:>9}" for number in numbers)
        for name, *numbers in rows
    )


def sizes(paths: Sequence[Path]) -> list[Size]:
    """Return the heights and widths of image files as they are seen, before they are scaled."""
    found = []
    for path in paths:
        with Image.open(path, formats=FORMATS) as image:
            swapped = turn_of(image) in SWAPS
            found.append((image.width, image.height) if swapped else (image.height, image.width))
    return found


def in_words(found: Sequence[Size]) -> str:
    """Describe heights and widths in pixels."""
    ordered = sorted(found, key=math.prod)
    chosen = (ordered[0], ordered[len(ordered) // 2], ordered[-1])
    smallest, middle, largest = (f"{width}×{height}" for height, width in chosen)
    share = mean(height != width for height, width in found)
    return f"{smallest} to {largest} pixels, median {middle}; {share:.1%} are not square"


Row = Sequence[str]


def faults(
    data: Dataset, parts: Mapping[str, ImageSet], sides: Sequence[int]
) -> dict[str, list[Row]]:
    """Return the faults by problem, each as a row of the columns after the first.

    `sides` are the sides of the images of all parts; see `find_copies`.
    """
    images = [
        (split, printable(str(name)), label)
        for split, part in parts.items()
        for name, label in zip(part.all_names, part.label_names(data.classes), strict=True)
    ]
    pixels, no_copy = [part.images for part in parts.values()], ("", "", "")
    flat = torch.cat([is_flat(part) for part in pixels]).nonzero().flatten().tolist()
    found: dict[str, list[Row]] = {
        "files that cannot be decoded": [
            ("", printable(name), "", *no_copy, printable(why)) for name, why in data.broken.items()
        ],
        "files skipped": [
            ("", printable(name), "", *no_copy, why) for name, why in data.skipped.items()
        ],
        "images with almost no contrast": [(*images[index], *no_copy, "") for index in flat],
    }
    copies: dict[str, list[Row]] = {problem: [] for problem in COPIES}
    two_labels, two_splits, twice = copies.values()
    places = [(split, label) for split, _, label in images]
    for first, second, value in find_copies(pixels, places, sides):
        one, other = places[first], places[second]
        rows = twice if one == other else two_splits if one[1] == other[1] else two_labels
        rows.append((*images[first], *images[second], f"correlation {value:.3f}"))
    return found | copies


def as_line(
    split: str,
    image: str,
    label: str,
    other_split: str,
    other_image: str,
    other_label: str,
    detail: str,
) -> str:
    """Return a line for the terminal about the image or the two images of a row."""
    if not split:
        return f"{image}: {detail}"
    first = f"{image} ({split}, {label})"
    return f"{first} and {other_image} ({other_split}, {other_label})" if other_split else first


def draw_copies(found: Mapping[str, Sequence[Row]], parts: Mapping[str, ImageSet]) -> Figure:
    """Draw the first DRAWN pairs of each problem of COPIES, the two images side by side."""
    pixels = {
        (split, printable(str(name))): (part.images, number)
        for split, part in parts.items()
        for number, name in enumerate(part.all_names)
    }

    def labeled(split: str, name: str, label: str) -> Labeled:
        images, number = pixels[split, name]
        lines = [(cut_to_fit(f"{split}: ", label), "black"), name_line(name)]
        return images[number], lines

    return draw_sheet(
        {
            f"{problem}, {min(len(rows), DRAWN)} of {counted(len(rows), 'pair')}": [
                labeled(*image) for row in rows[:DRAWN] for image in (row[:3], row[3:6])
            ]
            for problem, rows in found.items()
            if problem in COPIES and rows
        }
    )


# The side of a thumbnail in pixels, and the least correlation of the thumbnails of two copies.
SIDE, ALIKE = 8, 0.96
# The number of images to compare with all others at once, which limits the memory.
BLOCK = 512
# Alike images are compared again at up to FINE pixels. Color differences count less than brightness
# there, because JPEG stores them at half the resolution.
FINE, SATURATION = 32, 0.5
# The number of images to keep at that size.
KEPT = 10_000
# Copies are closer than this share of the distance to the image that is RANK-th most similar. As in
# the ratio test of Lowe (2004), this tells copies from different pictures of similar objects.
# Images at a distance below SURE are copies in any case: a picture may occur more than RANK times.
RATIO, RANK, SURE = 0.2, 10, 0.005


def find_copies(
    parts: Sequence[Tensor], places: Sequence[Hashable], sides: Sequence[int]
) -> list[tuple[int, int, float]]:
    """Return pairs of copies among images: two indices, and the correlation, the highest first.

    `parts` are tensors of uint8 images (n,C,H,W) with N images in total; an index counts through
    all parts. `sides` (N) are the shorter sides of the images in pixels, before any enlargement.
    Each image is paired with its most similar earlier image of each place: `places` (N) are, for
    example, the images' splits and labels. So a picture that occurs k times in one place gives
    k − 1 pairs. The distance of two images is one minus their correlation.
    """
    vectors, pixels = edges(parts), details(parts)
    reach = torch.empty(len(vectors))  # the greatest distance of each image's copies
    closest: dict[tuple[int, Hashable], tuple[float, int]] = {}
    for start in range(0, len(vectors), BLOCK):
        alike = vectors[start : start + BLOCK] @ vectors.T
        alike.diagonal(start).zero_()  # each image with itself
        rest = alike.topk(min(RANK, len(vectors))).values[:, -1]
        reach[start : start + BLOCK] = (RATIO * (1 - rest)).clamp(min=SURE)
        for row, other in (alike > ALIKE).tril(start - 1).nonzero().tolist():
            image = start + row
            # At half the side, because a copy of half the size has lost the finer details.
            side = max(SIDE, min(FINE, sides[image] // 2, sides[other] // 2))
            value = (pixels(image, side) @ pixels(other, side)).item()
            if 1 - value <= min(reach[image], reach[other]):
                key, match = (image, places[other]), (value, other)
                closest[key] = max(closest.get(key, match), match)
    pairs = [(other, image, value) for (image, _), (value, other) in closest.items()]
    return sorted(pairs, key=lambda pair: -pair[2])


def details(parts: Sequence[Tensor]) -> Callable[[int, int], Tensor]:
    """Return a function that returns the image of an index as a unit vector at a side in pixels.

    The dot product of two vectors is the correlation of the pixels of two images. As in `edges`,
    the mean of all images is subtracted.
    """
    places = [(part, row) for part in parts for row in range(len(part))]
    total = sum(some.sum(0) for part in parts for some in part.split(BLOCK))
    mean = total / (len(places) + 1)

    @lru_cache(KEPT)
    def vector(index: int, side: int) -> Tensor:
        part, row = places[index]
        pixels = part[row] - mean
        muted = torch.lerp(pixels.mean(0, keepdim=True), pixels, SATURATION)
        small = F.interpolate(muted[None], (side, side), mode="bilinear", antialias=True).flatten()
        return F.normalize(small - small.mean(), dim=0)

    return vector


def edges(parts: Sequence[Tensor]) -> Tensor:
    """Return the edges of a gray thumbnail of each uint8 image as unit vectors (N,D).

    The dot product of two vectors is the correlation of the images' edges. As in the difference
    hash (dHash, Krawetz 2013), edges are the differences between neighboring pixels; unlike there,
    they are not reduced to their signs, because JPEG changes the signs of small differences. The
    mean of all images is subtracted, because pictures that share only a frame or layout are not
    copies. (The mean includes one additional black image: otherwise, if all images were copies of
    one picture, nothing would remain.) The vectors of flat thumbnails are 0.
    """
    gray = torch.cat([resize(part, SIDE).float().mean(1) for part in parts])  # (N,SIDE,SIDE)
    steps = torch.cat((gray.diff(dim=1).flatten(1), gray.diff(dim=2).flatten(1)), dim=1)
    steps -= steps.sum(0) / (len(steps) + 1)
    return F.normalize(steps, dim=1) * ~is_flat(gray.unsqueeze(1)).unsqueeze(1)
