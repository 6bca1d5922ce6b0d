"""The safetensors format: tensors behind a JSON header, with no code that could run.

A file is 8 bytes with the length of the header, the header, {"name": {"dtype": "F32", "shape":
[2, 3], "data_offsets": [0, 24]}, …, "__metadata__": {"key": "text"}}, and the tensors' numbers,
little-endian, one after the other (https://huggingface.co/docs/safetensors).
"""

import io
import json
import math
import re
from collections.abc import Mapping
from typing import IO, Any

import torch
from torch import Tensor

from vit_train.engine.torch_file import DIMENSIONS, NODES, PICKLE_BYTES
from vit_train.files.plain_values import Refused, require_plain

# The header of a model with 100 blocks takes 200 kB.
HEADER_BYTES = PICKLE_BYTES
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
METADATA = "__metadata__"
State = dict[str, Tensor]


def read_safetensors(file: IO[bytes]) -> tuple[State, dict[str, str]]:
    """Return the tensors of a file and its metadata.

    Raise Refused for a file that is damaged or lies about its sizes: nothing is allocated that it
    does not hold.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:
        raise Refused(f"its header claims {length:,} bytes, but the file has {size:,}")
    if length > HEADER_BYTES:
        raise Refused(f"its header has {length:,} bytes, more than {HEADER_BYTES:,}")
    header = read_header(file.read(length))
    metadata = header.pop(METADATA, {})
    plain = isinstance(metadata, dict) and all(isinstance(each, str) for each in metadata.values())
    if not plain:
        raise Refused("its metadata are not texts")
    places = {name: place(name, entry) for name, entry in header.items()}
    require_no_gaps(
        {name: (start, end) for name, (_, _, start, end) in places.items()}, size, length
    )
    tensors = {}
    for name, (dtype, shape, start, end) in places.items():
        numbers = torch.empty(end - start, dtype=torch.uint8)
        file.seek(8 + length + start)
        if file.readinto(numbers.numpy().data) != end - start:  # type: ignore[attr-defined]
            raise Refused("it ends early")
        tensors[name] = numbers.view(dtype).reshape(shape)
    return tensors, metadata


def read_header(data: bytes) -> dict[str, Any]:
    """Return the JSON object of a header; raise Refused for anything else or a repeated key."""

    def without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            raise Refused("its header names a tensor twice")
        return content

    try:
        header = json.loads(data, object_pairs_hook=without_repetition)
    except Refused:
        raise
    except (ValueError, RecursionError) as error:
        raise Refused("its header is not JSON") from error
    require_plain(header, "its header", NODES)
    if not isinstance(header, dict):
        raise Refused("its header is not a JSON object")
    return header


def place(name: str, entry: Any) -> tuple[torch.dtype, tuple[int, ...], int, int]:
    """Return a tensor's type, shape, and where its numbers begin and end.

    Raise Refused unless these agree with each other.
    """
    said = repr(name[:80])
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise Refused(f"its header does not describe the tensor {said}")
    shape, offsets = entry["shape"], entry["data_offsets"]
    dtype = DTYPES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if dtype is None:
        raise Refused(f"the tensor {said} is of the type {str(entry['dtype'])[:20]!r}")
    valid = naturals(shape) and len(shape) <= DIMENSIONS and naturals(offsets) and len(offsets) == 2
    # PyTorch computes in 64 bits, even where another axis has no elements.
    if not valid or math.prod(max(1, each) for each in shape) >= 2**63:
        raise Refused(f"the tensor {said} has no valid shape or place")
    start, end = offsets
    if math.prod(shape) * dtype.itemsize != end - start:
        raise Refused(
            f"the tensor {said} of shape {tuple(shape)} does not fill its {end - start:,} bytes"
        )
    return dtype, tuple(shape), start, end


def naturals(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def require_no_gaps(places: Mapping[str, tuple[int, int]], size: int, length: int) -> None:
    """Raise Refused unless the tensors follow each other and fill the file exactly."""
    last = 0
    for name, (start, end) in sorted(places.items(), key=lambda item: item[1]):
        if start != last:
            raise Refused(f"the tensor {name[:80]!r} overlaps another, or follows a gap")
        last = end
    if last > size - 8 - length:
        raise Refused("it is cut off: its tensors have more bytes than the file")
    if last < size - 8 - length:
        raise Refused("it has more bytes than its tensors")


def write_safetensors(
    file: IO[bytes], state: Mapping[str, Tensor], metadata: dict[str, str]
) -> None:
    """Write tensors and metadata in the format that `read_safetensors` reads."""
    header: dict[str, Any] = {METADATA: metadata} if metadata else {}
    end = 0
    for name, tensor in state.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        shape = list(tensor.shape)
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": shape, "data_offsets": [start, end]}
    data = json.dumps(header, separators=(",", ":")).encode()
    data += b" " * (-len(data) % 8)  # so that the numbers are aligned
    file.write(len(data).to_bytes(8, "little") + data)
    for tensor in state.values():
        flat = tensor.detach().cpu().contiguous().flatten()
        file.write(flat.view(torch.uint8).numpy().data)


def is_safetensors(head: bytes, size: int) -> bool:
    """Return whether a file with these first bytes and size looks like safetensors."""
    return bool(re.match(rb".{8}\{", head, re.DOTALL)) and int.from_bytes(head[:8], "little") < size
