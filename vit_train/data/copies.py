"""Find duplicate images: resaved, resized, or a little brighter or darker."""

from collections.abc import Hashable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vit_train.data.dataset import resize
from vit_train.data.decode import is_flat

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
    mean of all images is subtracted, because pictures with the same frame or layout are no copies.
    (The mean counts one black image more, or else it would equal the images of a set that consists
    of copies alone.) The vectors of flat thumbnails are 0.
    """
    gray = torch.cat([resize(part, SIDE).float().mean(1) for part in parts])  # (N,SIDE,SIDE)
    steps = torch.cat((gray.diff(dim=1).flatten(1), gray.diff(dim=2).flatten(1)), dim=1)
    steps -= steps.sum(0) / (len(steps) + 1)
    return F.normalize(steps, dim=1) * ~is_flat(gray.unsqueeze(1)).unsqueeze(1)
