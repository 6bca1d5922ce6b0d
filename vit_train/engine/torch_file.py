"""PyTorch's file format, read without running anything and without taking more than the file holds.

A file is a ZIP archive: `data.pkl` describes nested values and the tensors among them, `data/0`,
`data/1`, … are the tensors' storages. `torch.load(weights_only=True)` runs no code either, but a
few bytes make it take any memory and time: a tensor that repeats one number a billion times, a
record that inflates, a call such as bytearray(10**12).
So the pickle is read here, with a closed list of instructions and names; the tensors are built
last, when all that they claim has been compared with what is there.
"""

import io
import math
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vit_train.files.plain import Refused, require_plain

# The pickle of a model with 100 blocks, its average and its optimizer's moments has 1 MB.
PICKLE_BYTES = 4_000_000
NODES = 1_000_000
RECORDS, CHUNK = 100_000, 1 << 20
DIMENSIONS = 16
DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
# What `torch.save` writes for nested dicts, lists, tuples, numbers, words and tensors.
INSTRUCTIONS = {
    *("PROTO", "STOP", "MARK", "GLOBAL", "REDUCE", "BUILD", "BINPERSID", "BINUNICODE"),
    *("BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
    *("EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND", "APPENDS"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "NONE", "NEWTRUE", "NEWFALSE"),
}


class Storage(NamedTuple):
    """Numbers in one record of the archive, as the pickle tells of them."""

    record: str
    dtype: torch.dtype


class View(NamedTuple):
    """A tensor as the pickle tells of it; nothing of it has been read yet."""

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class Rebuild:
    """Stands for `torch._utils._rebuild_tensor_v2`; has no attributes that a pickle could set."""

    __slots__ = ()

    def __call__(
        self, storage: Any, offset: Any, size: Any, stride: Any, *gradient: object
    ) -> "View":
        whole = all(type(n) is int and n >= 0 for n in (offset, *size, *stride))
        fits = len(size) == len(stride) <= DIMENSIONS
        if not isinstance(storage, Storage) or not whole or not fits:
            raise Refused("it has a tensor without a shape")
        return View(storage, offset, tuple(size), tuple(stride))


class Described(pickle.Unpickler):
    """The values that a pickle describes, with a View for each tensor."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return Rebuild()
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        raise Refused(f"it holds a {printable_name(module, name)}, which is not a plain value")

    def persistent_load(self, pid: Any) -> Storage:
        kind, dtype, key, _, _ = pid
        if kind != "storage" or not isinstance(dtype, torch.dtype) or not isinstance(key, str):
            raise Refused("it has a tensor without numbers")
        return Storage(f"data/{key}", dtype)


def printable_name(module: str, name: str) -> str:
    return ascii(f"{module}.{name}"[:80])[1:-1]


def read_torch_file(file: IO[bytes], device: torch.device | str = "cpu") -> Any:
    """The content of a file that `torch.save` has written: plain values and tensors.

    Raises Refused for anything else, whatever it is.
    """
    try:
        size = file.seek(0, io.SEEK_END)
        records = open_archive(file, size)
        described = read_pickle(records["data.pkl"].read())
        require_plain(described, "it", NODES, (View,))
        return Tensors(records, size, device).fill(described)
    except Refused:
        raise
    except Exception as error:  # a file made by others can break a reader anywhere
        raise Refused(f"it cannot be read ({type(error).__name__})") from error


class Record(NamedTuple):
    archive: zipfile.ZipFile
    entry: zipfile.ZipInfo

    def read(self) -> bytes:
        return self.archive.read(self.entry)


def open_archive(file: IO[bytes], size: int) -> dict[str, Record]:
    """The records by their names in the archive's only folder; Refused if they would inflate."""
    file.seek(0)
    if sum(chunk.count(b"PK\x01\x02") for chunk in iter(partial(file.read, CHUNK), b"")) > RECORDS:
        raise Refused("it has too many records")
    archive = zipfile.ZipFile(file)
    entries = archive.infolist()
    if any(
        each.compress_type != zipfile.ZIP_STORED or each.file_size != each.compress_size
        for each in entries
    ):
        raise Refused("its records are compressed")
    if sum(each.file_size for each in entries) > size:
        raise Refused("its records overlap")
    records = {each.filename.partition("/")[2]: Record(archive, each) for each in entries}
    if len(records) < len(entries):
        raise Refused("it has several records of one name")
    if "byteorder" in records and records["byteorder"].read() != b"little":
        raise Refused("its numbers are big-endian")
    return records


def read_pickle(data: bytes) -> Any:
    """Refused for instructions and names that no file of plain values and tensors has."""
    if len(data) > PICKLE_BYTES:
        raise Refused("it describes too many values")
    for count, (instruction, argument, _) in enumerate(pickletools.genops(data)):
        if instruction.name not in INSTRUCTIONS:
            raise Refused("it holds Python objects, not plain values alone")
        # Python's unpickler makes room for as many values as the greatest number says.
        if instruction.name.endswith("BINPUT") and int(argument or 0) > count:
            raise Refused("it holds Python objects, not plain values alone")
    return Described(io.BytesIO(data)).load()


class Tensors:
    """Builds the tensors of one file, each storage once."""

    def __init__(
        self, records: Mapping[str, Record], file_size: int, device: torch.device | str
    ) -> None:
        self.records, self.device = records, device
        self.left = file_size
        self.storages: dict[Storage, Tensor] = {}

    def fill(self, value: Any) -> Any:
        """The same values, with a tensor for each View."""
        if isinstance(value, View):
            return self.build(value)
        if isinstance(value, dict):
            return {key: self.fill(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.fill(each) for each in value)
        return value

    def build(self, view: View) -> Tensor:
        """Refused if it has more numbers than its storage, or all together more than the file."""
        count = math.prod(view.size)
        self.left -= count * view.storage.dtype.itemsize
        storage = self.storage(view.storage)
        steps = zip(view.size, view.stride, strict=True)
        last = view.offset + sum((size - 1) * stride for size, stride in steps)
        if self.left < 0 or count > len(storage) or (count and last >= len(storage)):
            raise Refused("it has a tensor of more numbers than the file holds")
        return storage.as_strided(view.size, view.stride, view.offset if count else 0)

    def storage(self, storage: Storage) -> Tensor:
        if storage not in self.storages:
            numbers = np.frombuffer(self.records[storage.record].read(), np.uint8)
            room = torch.empty(len(numbers), dtype=torch.uint8)
            room.numpy()[:] = numbers  # at an address that PyTorch likes
            self.storages[storage] = room.view(storage.dtype).to(self.device)
        return self.storages[storage]
