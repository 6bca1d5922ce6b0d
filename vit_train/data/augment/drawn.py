"""What is drawn for a batch, packed into one tensor, so that a GPU needs a single copy a batch.

Each part of it is a NamedTuple whose fields have a value for each image, (B,).
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor

Part = TypeVar("Part", bound=tuple[Tensor, ...])


def pack(parts: Iterable[tuple[Tensor, ...]]) -> Tensor:
    """Stack all fields of all parts: (F,B), float64, which is exact for whole numbers up to 2⁵³."""
    return torch.stack([field.double() for part in parts for field in part])


def unpack(rows: Iterator[Tensor], kind: type[Part]) -> Part:
    """Return the next of the parts that were packed, from the rows that are left."""
    return kind(*islice(rows, len(kind._fields)))  # type: ignore[attr-defined]


def per_image(values: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return values (B,) as (B,1,1,1), for use with images."""
    return values.to(dtype).view(-1, 1, 1, 1)
