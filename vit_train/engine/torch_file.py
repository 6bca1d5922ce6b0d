"""A reader of PyTorch's files that runs no code and bounds its memory by the file's size.

A file is a ZIP archive: `data.pkl` describes nested values and the tensors among them, and
`data/0`, `data/1`, … are the tensors' storages. `torch.load(weights_only=True)` runs no code
either, but a few bytes can make it use any amount of memory and time: a tensor that repeats one
number a billion times, a compressed record that inflates, a call such as bytearray(10**12).

This module therefore reads the pickle itself and accepts only listed instructions and names. It
builds the tensors last, after comparing their descriptions with what the file really holds.
"""

import io
import math
import pickle
import pickletools
import zipfile
from collections.abc import Mapping
from functools import partial
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vit_train.files.plain_values import Refused, require_plain

# The pickle of a model with 100 blocks, its average and its optimizer's moments takes 1 MB.
PICKLE_BYTES = 4_000_000
NODES = 1_000_000
RECORDS, CHUNK = 100_000, 1 << 20
KEY_LENGTH, DIMENSIONS = 20, 16
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
# What `torch.save` writes for nested dicts, lists, tuples, numbers, strings and tensors.
INSTRUCTIONS = {
    *("PROTO", "STOP", "MARK", "GLOBAL", "REDUCE", "BUILD", "BINPERSID", "BINUNICODE"),
    *("BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
    *("EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND", "APPENDS"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "NONE", "NEWTRUE", "NEWFALSE"),
}


class Storage(NamedTuple):
    """Numbers in one record of the archive, as the pickle describes them."""

    record: str
    dtype: torch.dtype


class View(NamedTuple):
    """A tensor as the pickle describes it; none of its numbers have been read yet."""

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


class Rebuild:
    """Replacement for `torch._utils._rebuild_tensor_v2`, with no attributes a pickle could set."""

    __slots__ = ()

    def __call__(
        self, storage: Any, offset: Any, size: Any, stride: Any, *gradient: object
    ) -> "View":
        natural = all(type(n) is int and n >= 0 for n in (offset, *size, *stride))
        fits = len(size) == len(stride) <= DIMENSIONS
        if not isinstance(storage, Storage) or not natural or not fits:
            raise Refused("it has a tensor without a valid shape")
        return View(storage, offset, tuple(size), tuple(stride))


class Items(dict[Any, Any]):
    """Replacement for `collections.OrderedDict`, which a pickle can only make empty, then fill.

    An OrderedDict could be told to copy another one, ten thousand times, or to hide its values.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()

    def __setstate__(self, state: object) -> None:
        """Leave out attributes: those of a state dict are its modules' versions."""


class Described(pickle.Unpickler):
    """Unpickler of the values that a pickle describes, with a View for each tensor."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return Items
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return Rebuild()
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        raise Refused(f"it holds a {printable_name(module, name)}, which is not a plain value")

    def persistent_load(self, pid: Any) -> Storage:
        kind, dtype, key, _, _ = pid
        named = isinstance(key, str) and len(key) <= KEY_LENGTH
        if kind != "storage" or not isinstance(dtype, torch.dtype) or not named:
            raise Refused("it has a tensor without data")
        return Storage(f"data/{key}", dtype)


def printable_name(module: str, name: str) -> str:
    return ascii(f"{module}.{name}"[:80])[1:-1]


def read_torch_file(file: IO[bytes], device: torch.device | str = "cpu") -> Any:
    """Return the content of a file written by `torch.save`: plain values and tensors.

    Raise Refused for any other content, including damaged and malicious files.
    """
    try:
        size = file.seek(0, io.SEEK_END)
        records = open_archive(file, size)
        described = read_pickle(records["data.pkl"].read())
        require_plain(described, "it", NODES, (View,))
        return Tensors(records, size, device).fill(described)
    except Refused:
        raise
    except Exception as error:  # reading a malicious file can raise anything
        raise Refused(f"it cannot be read ({type(error).__name__})") from error


class Record(NamedTuple):
    archive: zipfile.ZipFile
    entry: zipfile.ZipInfo

    def read(self) -> bytes:
        return self.archive.read(self.entry)


def open_archive(file: IO[bytes], size: int) -> dict[str, Record]:
    """Return the records by their names in the archive's only folder.

    Raise Refused if the records could take more memory than the file (because they are compressed
    or overlap), are too many, share a name or hold big-endian numbers.
    """
    file.seek(0)
    if sum(chunk.count(b"PK\x01\x02") for chunk in iter(partial(file.read, CHUNK), b"")) > RECORDS:
        raise Refused("it has too many records")
    archive = zipfile.ZipFile(file)
    entries = archive.infolist()
    if any(
        entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size
        for entry in entries
    ):
        raise Refused("its records are compressed")
    if sum(entry.file_size for entry in entries) > size:
        raise Refused("its records overlap")
    records = {entry.filename.partition("/")[2]: Record(archive, entry) for entry in entries}
    if len(records) < len(entries):
        raise Refused("it has several records with the same name")
    if "byteorder" in records and records["byteorder"].read() != b"little":
        raise Refused("its numbers are big-endian")
    return records


def read_pickle(data: bytes) -> Any:
    """Return the values that a pickle describes, with a View for each tensor.

    Raise Refused for instructions and names that no file of plain values and tensors has.
    """
    if len(data) > PICKLE_BYTES:
        raise Refused("it describes too many values")
    for count, (instruction, argument, _) in enumerate(pickletools.genops(data)):
        if instruction.name not in INSTRUCTIONS:
            raise Refused("it holds Python objects, not just plain values")
        # Python's unpickler allocates memory for as many values as the largest index says.
        if instruction.name.endswith("BINPUT") and int(argument or 0) > count:
            raise Refused("it holds Python objects, not just plain values")
    return Described(io.BytesIO(data)).load()


class Tensors:
    """Builder of the tensors of one file; it reads each record once."""

    def __init__(
        self, records: Mapping[str, Record], file_size: int, device: torch.device | str
    ) -> None:
        self.records, self.device = records, device
        self.left = file_size
        self.records_read: dict[str, Tensor] = {}

    def fill(self, value: Any) -> Any:
        """Return the same values, with each View replaced by its tensor."""
        if isinstance(value, View):
            return self.build(value)
        if isinstance(value, dict):
            return {key: self.fill(child) for key, child in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.fill(child) for child in value)
        return value

    def build(self, view: View) -> Tensor:
        """Return the tensor that a View describes.

        Raise Refused if it has more numbers than its storage, or if all tensors together have more
        bytes than the file.
        """
        count = math.prod(view.size)
        self.left -= count * view.storage.dtype.itemsize
        storage = self.storage(view.storage)
        steps = zip(view.size, view.stride, strict=True)
        last = view.offset + sum((size - 1) * stride for size, stride in steps)
        if self.left < 0 or count > len(storage) or (count and last >= len(storage)):
            raise Refused("it has a tensor of more numbers than the file holds")
        return storage.as_strided(view.size, view.stride, view.offset if count else 0)

    def storage(self, storage: Storage) -> Tensor:
        if storage.record not in self.records_read:
            numbers = np.frombuffer(self.records[storage.record].read(), np.uint8)
            buffer = torch.empty(len(numbers), dtype=torch.uint8)
            buffer.numpy()[:] = numbers  # at an aligned address
            self.records_read[storage.record] = buffer.to(self.device)
        return self.records_read[storage.record].view(storage.dtype)
