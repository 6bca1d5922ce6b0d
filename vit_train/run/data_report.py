"""`vit-data`: the images of each split, and faults to repair before training."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, compress, permutations
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
from vit_train.config.tools import DataReportConfig
from vit_train.data.dataset import ImageSet, load_dataset, resize
from vit_train.data.decode import SWAPS, is_flat, turn_of
from vit_train.data.files import IMAGE_FORMATS, bulleted
from vit_train.data.splits import make_splits
from vit_train.evaluate.pages import Photo, write_workbench
from vit_train.figures.charts import Figure, save
from vit_train.figures.images import Labeled, cut_to_fit, draw_sheet, name_line
from vit_train.trained.folder import run_at

# The problems of single files and images, and of pairs of copies.
FAULTS = ("files that cannot be decoded", "files skipped", "images with almost no contrast")
COPIES = (
    "one picture with two labels",
    "one picture in two splits",
    "one picture twice in a split",
)
# The number of pairs of each problem to draw.
PAIRS_DRAWN = 24
FAULT_COLUMNS = (
    "problem",
    "split",
    "image",
    "label",
    "copy_split",
    "copy_image",
    "copy_label",
    "detail",
)

ABOUT_BROKEN = (
    "  vit-train refuses these: repair or remove them, leave them out (by a line "
    "PATH,leave out,, in data.decisions=FILE), or set data.on_error=skip"
)
# How far the page of the copies can be trusted: see docs/data.md.
ABOUT_COPIES = (
    "Of the copies of a picture, keep one. Nearly all of these pairs are copies: in a test with "
    "300 edited copies among 3,000 CIFAR-10 images, 299 were found, and one other pair was listed."
)

# The split, name and label of an image.
ImageEntry = tuple[str, str, str]
# A problem of COPIES, the indices of the two images, and their correlation.
Copy = tuple[str, int, int, float]


def report_data(config: DataReportConfig) -> None:
    """Print the numbers of images and the faults of a data set; write all faults to config.out."""
    data = config.data
    if isinstance(data, FolderConfig):
        split_as = data.split_as and str(run_at(Path(data.split_as)))
        # Bars would hide flat images, and look alike.
        data = replace(
            data, on_error="skip", split_as=split_as, fit=data.fit.replace("pad", "stretch")
        )
    loaded = load_dataset(data)
    parts = make_splits(loaded, data).parts
    if data.val != "split":  # with data.val=test, these are the test images
        parts.pop("val", None)
    logger.info(class_counts(parts, loaded.classes))
    images = [
        (split, str(name), label)
        for split, part in parts.items()
        for name, label in zip(part.all_names, part.label_names(loaded.classes), strict=True)
    ]
    sides = list(chain(*(file_sides(split, part, data) for split, part in parts.items())))
    pixels = [part.images for part in parts.values()]
    copies = classified(find_copies(pixels, [entry[::2] for entry in images], sides), images)
    marks = (is_flat(some.numpy()) for part in pixels for some in part.split(CHUNK))
    flat = list(compress(images, chain(*marks)))
    faults = [
        *(
            (problem, "", name, "", "", "", "", why)
            for problem, files in ((FAULTS[0], loaded.broken), (FAULTS[1], loaded.skipped))
            for name, why in files.items()
        ),
        *((FAULTS[2], *entry, "", "", "", "") for entry in flat),
        *(
            (kind, *images[a], *images[b], f"correlation {value:.3f}")
            for kind, a, b, value in copies
        ),
    ]
    rows = [tuple(map(printable, fault)) for fault in faults]  # as in FAULT_COLUMNS
    for problem in (*FAULTS, *COPIES):
        lines = [as_line(*row[1:]) for row in rows if row[0] == problem]
        advice = f"\n{ABOUT_BROKEN}" if lines and problem == FAULTS[0] else ""
        logger.info(f"{problem}: {len(lines):,}{bulleted(lines)}{advice}")
    out = Path(config.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, csv_text([FAULT_COLUMNS, *rows]))
    picture = out.with_name(f"{out.stem}_copies.png")
    picture.unlink(missing_ok=True)  # an earlier one may show other images
    if copies:
        save(draw_copies(copies, images, pixels), picture)
        logger.info(f"pictures of the pairs written to {picture}")
    logger.info(f"all {counted(len(rows), 'fault')} of {data.title} written to {out}")
    if isinstance(data, FolderConfig):
        write_workbench(
            out.with_name(f"{out.stem}_workbench.html"),
            cases(copies, flat, images),
            () if loaded.train.has_tags else loaded.classes,
            replace(data, **loaded.settings),
            ABOUT_COPIES,
        )


def file_sides(split: str, part: ImageSet, data: DataConfig) -> list[int]:
    """Return the shorter side of each image, without any enlargement; log the sizes of files."""
    shown = min(part.images.shape[2:])
    if not isinstance(data, FolderConfig):
        return [shown] * len(part)
    paths = [Path(data.root, name) for name in part.all_names]
    sizes = {path: file_size(path) for path in paths}
    ordered = sorted(paths, key=lambda path: math.prod(sizes[path]))
    chosen = (ordered[0], ordered[-1], ordered[len(ordered) // 2])
    # Only these are turned as they are seen, because PNG files must be decoded for it.
    seen = (file_size(path, turned=True) for path in chosen)
    smallest, largest, middle = (f"{width}×{height}" for width, height in seen)
    share = mean(height != width for width, height in sizes.values())
    described = f"{smallest} to {largest} pixels, median {middle}; {share:.1%} are not square"
    logger.info(f"{split} files: {described}")
    return [min(*sizes[path], shown) for path in paths]


def file_size(path: Path, turned: bool = False) -> tuple[int, int]:
    """Return the width and height of the image in a file; if `turned`, as the image is seen."""
    with Image.open(path, formats=IMAGE_FORMATS) as image:
        return image.size[::-1] if turned and turn_of(image) in SWAPS else image.size


def class_counts(parts: Mapping[str, ImageSet], classes: Sequence[str]) -> str:
    """Format a table with the number of images of each class in each split."""
    names = ["class", *(shortened(name, CLASS_NAME) for name in classes), "all"]
    columns = [
        [split, *part.class_counts(len(classes)), len(part)] for split, part in parts.items()
    ]
    width = max(map(len, names))
    return "\n".join(
        f"{name:<{width}}" + "".join(f"{number:>9}" for number in numbers)
        for name, *numbers in zip(names, *columns, strict=True)
    )


def cases(
    copies: Sequence[Copy], flat: Sequence[ImageEntry], images: Sequence[ImageEntry]
) -> dict[str, list[list[Photo]]]:
    """Return the cases of the page: pairs of copies by problem, then `flat` images."""
    found: dict[str, list[list[Photo]]] = {problem: [] for problem in COPIES}
    for problem, a, b, _ in copies:
        pair = []
        for (split, name, label), (_, other, better) in permutations((images[a], images[b])):
            suggested = "" if better == label else better
            pair.append((name, label, f"{split}, copy of {other}", suggested))
        found[problem].append(pair)
    faint = [[(name, label, f"{split}, almost no contrast", "")] for split, name, label in flat]
    return found | {FAULTS[2]: faint}


def classified(pairs: Iterable[tuple[int, int, float]], images: Sequence[ImageEntry]) -> list[Copy]:
    """Return pairs of copies with their problem, in the order of COPIES."""
    copies: list[Copy] = []
    for first, second, value in pairs:
        split, name, label = images[first]
        other_split, other_name, other_label = images[second]
        if (split, name) == (other_split, other_name):  # a table may give an image several labels
            continue
        number = 0 if label != other_label else 1 if split != other_split else 2
        copies.append((COPIES[number], first, second, value))
    return sorted(copies, key=lambda copy: COPIES.index(copy[0]))


def as_line(
    split: str, name: str, label: str, other_split: str, other: str, other_label: str, detail: str
) -> str:
    """Return a line for the terminal about a row of FAULT_COLUMNS."""
    if not split:
        return f"{name}: {detail}"
    also = f" and {other} ({other_split}, {other_label})" if other else ""
    return f"{name} ({split}, {label}){also}"


def draw_copies(
    copies: Sequence[Copy], images: Sequence[ImageEntry], parts: Sequence[Tensor]
) -> Figure:
    """Draw the first PAIRS_DRAWN pairs of each problem of COPIES, the two images side by side."""
    pixels = [(part, row) for part in parts for row in range(len(part))]
    sections = {}
    for problem in COPIES:
        pairs = [pair for kind, *pair, _ in copies if kind == problem]
        shown: list[Labeled] = []
        for index in chain(*pairs[:PAIRS_DRAWN]):
            split, name, label = images[index]
            part, row = pixels[index]
            lines = [(cut_to_fit(f"{split}: ", label), "black"), name_line(printable(name))]
            shown.append((part[row], lines))
        if pairs:
            title = f"{problem}, {len(shown) // 2} of {counted(len(pairs), 'pair')}"
            sections[title] = shown
    return draw_sheet(sections)


# The side of a thumbnail in pixels, and the least correlation of the thumbnails of two copies.
THUMBNAIL = 8
ALIKE = 0.96
# The number of images to compare with all others at once, which limits the memory.
CHUNK = 512
# Alike images are compared again at up to FINE pixels. Color differences count less than brightness
# there, because JPEG stores them at half the resolution.
FINE = 32
SATURATION = 0.5
# The number of images to cache at that size.
KEPT = 10_000
# Copies are closer than this share of the distance to the image that is RANK-th most similar. As in
# the ratio test of Lowe (2004), this tells copies from different pictures of similar objects.
# Images at a distance below SURE are copies in any case: a picture may occur more than RANK times.
RATIO = 0.2
RANK = 10
SURE = 0.005


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
    vectors = edges(parts)
    pixels = details(parts)
    reach = torch.empty(len(vectors))  # the greatest distance of each image's copies
    closest: dict[tuple[int, Hashable], tuple[float, int]] = {}
    for start in range(0, len(vectors), CHUNK):
        alike = vectors[start : start + CHUNK] @ vectors.T
        alike.diagonal(start).zero_()  # each image with itself
        rest = alike.topk(min(RANK, len(vectors))).values[:, -1]
        reach[start : start + CHUNK] = (RATIO * (1 - rest)).clamp(min=SURE)
        for row, other in (alike > ALIKE).tril(start - 1).nonzero().tolist():
            image = start + row
            # At half the side, because a copy of half the size has lost the finer details.
            side = max(THUMBNAIL, min(FINE, sides[image] // 2, sides[other] // 2))
            value = (pixels(image, side) @ pixels(other, side)).item()
            if 1 - value <= min(reach[image], reach[other]):
                key = (image, places[other])
                closest[key] = max(closest.get(key, (value, other)), (value, other))
    pairs = [(other, image, value) for (image, _), (value, other) in closest.items()]
    return sorted(pairs, key=lambda pair: -pair[2])


def details(parts: Sequence[Tensor]) -> Callable[[int, int], Tensor]:
    """Return a function from an image's index and a side in pixels to the image as a unit vector.

    The dot product of two vectors is the correlation of the pixels of two images. As in `edges`,
    the mean of all images is subtracted.
    """
    places = [(part, row) for part in parts for row in range(len(part))]
    total = sum(some.sum(0) for part in parts for some in part.split(CHUNK))
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
    gray = torch.cat([resize(part, THUMBNAIL)[:].float().mean(1) for part in parts])  # (N,S,S)
    steps = torch.cat((gray.diff(dim=1).flatten(1), gray.diff(dim=2).flatten(1)), dim=1)
    steps -= steps.sum(0) / (len(steps) + 1)
    flat = torch.from_numpy(is_flat(gray.unsqueeze(1).numpy()))
    return F.normalize(steps, dim=1) * ~flat.unsqueeze(1)
