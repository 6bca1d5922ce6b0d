"""`vit-data`: the images of each split, and faults to repair before training."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vit_train.base.log import logger
from vit_train.base.setting import Size
from vit_train.base.text import CLASS_NAME, counted, csv_text, printable, shortened
from vit_train.base.writing import write_text
from vit_train.data.config import FolderConfig
from vit_train.data.dataset import Dataset, ImageSet, resize
from vit_train.data.decode import SWAPS, is_flat, turn_of
from vit_train.data.image_files import FORMATS, bulleted
from vit_train.data.sources import load_dataset
from vit_train.data.splits import make_splits
from vit_train.runs.paths import run_at
from vit_train.runs.settings import DataReportConfig

# Two shapes are alike if their aspect ratios differ by less than SAME_SHAPE; a shape is suggested
# only if at least the share MOST of the images is alike.
SAME_SHAPE, MOST = 0.1, 0.8
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
    splits = make_splits(loaded, data)
    if data.val != "split":  # with data.val=test, these are the test images
        splits = replace(splits, val=None)
    parts = splits.parts
    logger.info(class_counts(parts, loaded.classes))
    if isinstance(data, FolderConfig):
        for split, part in parts.items():
            paths = [Path(data.root, name) for name in part.all_names]
            seen = sizes(paths)
            advice = shape_advice(seen) if split == "train" else ""
            logger.info(f"{split} files: {in_words(seen)}{advice}")
    found = faults(loaded, parts)
    for problem, rows in found.items():
        logger.info(f"{problem}: {len(rows):,}{bulleted([as_line(*row) for row in rows])}")
    table = [(problem, *row) for problem, rows in found.items() for row in rows]
    Path(config.out).parent.mkdir(parents=True, exist_ok=True)
    write_text(Path(config.out), csv_text([COLUMNS, *table]))
    logger.info(f"all {counted(len(table), 'fault')} of {data.title} written to {config.out}")


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


def shape_advice(found: Sequence[Size]) -> str:
    """Return advice on data.image_size for heights and widths; "" for square or various images."""
    ratios = [height / width for height, width in found]
    usual = median(ratios)
    longer = max(usual, 1 / usual)
    # Multiples of 8 pixels, with about the area of the usual 64 by 64.
    short = 8 * max(1, round(8 / longer**0.5))
    long = 8 * round(short * longer / 8)
    height, width = (long, short) if usual > 1 else (short, long)
    alike = mean(abs(math.log(ratio / usual)) < SAME_SHAPE for ratio in ratios)
    if alike < MOST or height == width:
        return ""
    return f": data.image_size=[{height},{width}] (height, width) keeps the shape of {alike:.0%}"


Row = Sequence[str]


def faults(data: Dataset, parts: Mapping[str, ImageSet]) -> dict[str, list[Row]]:
    """Return the faults by problem, each as a row of the columns after the first."""
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
    copies: dict[str, list[Row]] = {
        "one picture with two labels": [],
        "one picture in two splits": [],
        "one picture twice in a split": [],
    }
    two_labels, two_splits, twice = copies.values()
    places = [(split, label) for split, _, label in images]
    for first, second, value in find_copies(pixels, places):
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


# The side of a thumbnail in pixels, and the least correlation of two copies. Of CIFAR-10 images
# saved as JPEG of quality 60 at half their size, 99 % reach it; of pairs of drawn shapes, 1 in 10⁷.
SIDE, ALIKE = 8, 0.96
# The number of images to compare with all earlier ones at once, which limits the memory.
BLOCK = 512


def find_copies(
    parts: Sequence[Tensor], places: Sequence[Hashable]
) -> list[tuple[int, int, float]]:
    """Return pairs of copies among images: two indices, and the correlation, the highest first.

    `parts` are tensors of uint8 images (n,C,H,W) with N images in total; an index counts through
    all parts. Each image is paired with its most similar earlier image of each place: `places` (N)
    are, for example, the images' splits and labels. So a picture that occurs k times in one place
    gives k − 1 pairs.
    """
    vectors = edges(parts)
    closest: dict[tuple[int, Hashable], tuple[float, int]] = {}
    for start in range(0, len(vectors), BLOCK):
        alike = (vectors[start : start + BLOCK] @ vectors[: start + BLOCK].T).tril(start - 1)
        for row, other in (alike > ALIKE).nonzero().tolist():
            key, match = (start + row, places[other]), (alike[row, other].item(), other)
            closest[key] = max(closest.get(key, match), match)
    pairs = [(other, image, value) for (image, _), (value, other) in closest.items()]
    return sorted(pairs, key=lambda pair: -pair[2])


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
