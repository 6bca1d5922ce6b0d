"""PyTorch's files as PyTorch reads them, and nothing that could do harm."""

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vit_train.engine import foreign, torch_file
from vit_train.engine.torch_file import read_torch_file
from vit_train.files.plain_values import DEPTH, Refused


def saved(content: Any) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and all(map(same, one, other)) and len(one) == len(other)
    return type(one) is type(other) and one == other


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32]
DTYPES += [torch.int16, torch.int8, torch.uint8, torch.bool]


def some_tensor(seed: int) -> Tensor:
    """Of any type and shape, a part of a larger one or turned over."""
    rng = np.random.default_rng(seed)
    shape = rng.integers(0, 4, rng.integers(0, 4)).tolist()
    tensor = torch.from_numpy(rng.integers(-2, 3, shape)).to(DTYPES[seed % len(DTYPES)])
    if tensor.ndim > 1 and seed % 3 == 0:
        tensor = tensor.transpose(0, 1)
    return tensor[1:] if tensor.ndim and seed % 4 == 0 else tensor


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False)
    | st.text(max_size=20) | st.integers(0, 1000).map(some_tensor),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner)
    | st.dictionaries(st.text(max_size=5) | st.integers(-9, 9), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=60, deadline=None, derandomize=True)
@given(value=values)
def test_plain_values_and_tensors_come_back_as_pytorch_reads_them(value: Any) -> None:
    file = saved(value)
    assert same(read_torch_file(file), value)
    file.seek(0)
    assert same(torch.load(file, weights_only=True), value)


def test_a_module_s_state_dict_and_an_optimizer_s_state_are_plain() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    for state in (model.state_dict(), optimizer.state_dict()):
        assert same(read_torch_file(saved(state)), dict(state))


def tied() -> dict[str, Tensor]:
    one = torch.zeros(100)
    return {str(number): one for number in range(100)}


def doubled(depth: int, value: Any = 0) -> Any:
    for _ in range(depth):
        value = {"a": value, "b": value}
    return value


def holds_itself() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


HARMFUL: dict[str, Callable[[], Any]] = {
    "one number, a billion times": lambda: torch.zeros(1).expand(10**9),
    "a window that overlaps itself": lambda: torch.zeros(100).unfold(0, 50, 1),
    "one tensor, a hundred times": tied,
    "shared forty deep": lambda: doubled(40),
    "a list in itself": holds_itself,
    "too deep": lambda: doubled(DEPTH + 1),
    "an integer of thousands of bits": lambda: 10**400,
    "a sparse tensor": lambda: torch.eye(3).to_sparse(),
    "a quantized tensor": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "a tensor without numbers": lambda: torch.ones(10**12, device="meta"),
    "a parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "a complex tensor": lambda: torch.ones(3, dtype=torch.complex64),
    "a set": lambda: {1, 2},
    "a class": lambda: pickle.Pickler,
    "a path": lambda: Path("x"),
    "a numpy array": lambda: np.ones(3),
}


@pytest.mark.parametrize("name", HARMFUL)
@pytest.mark.filterwarnings("ignore")
def test_whatever_would_take_more_than_the_file_holds_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = saved({"x": HARMFUL[name]()})
    monkeypatch.setattr(torch, "empty", limited(torch.empty))
    with pytest.raises(Refused):
        read_torch_file(file)


def limited(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def at_most_a_megabyte(size: int, **more: Any) -> Tensor:
        assert size < 2**20
        return function(size, **more)

    return at_most_a_megabyte


def rewritten(file: io.BytesIO, change: Callable[[str, bytes], bytes], method: int = 0) -> Any:
    """The archive with other records."""
    result = io.BytesIO()
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(result, "w", method) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
    return result


def test_a_storage_larger_than_its_record_is_refused() -> None:
    def cut(name: str, data: bytes) -> bytes:
        return data[:4] if name.endswith("data/0") else data

    with pytest.raises(Refused, match="more numbers than the file holds"):
        read_torch_file(rewritten(saved(torch.ones(1000)), cut))


def test_records_that_inflate_are_refused() -> None:
    file = rewritten(saved(torch.zeros(10**6)), lambda _, data: data, zipfile.ZIP_DEFLATED)
    assert len(file.getvalue()) < 10_000
    with pytest.raises(Refused, match="compressed"):
        read_torch_file(file)


def test_records_that_share_their_bytes_are_refused() -> None:
    """The archive's table of contents names one record twenty times."""
    data = bytearray(saved(torch.zeros(10_000)).getvalue())
    archive = zipfile.ZipFile(io.BytesIO(data))
    entries = archive.infolist()
    start, end = archive.start_dir, data.index(b"PK\x06\x06", archive.start_dir)
    contents = bytes(data[start:end])
    one = contents[contents.index(b"data/0") - 46 - len("archive/") :]
    one = one[: 46 + sum(struct.unpack("<HHH", one[28:34]))]
    more = b"".join(one.replace(b"data/0", b"data/%c" % (65 + n)) for n in range(20))
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, *[len(entries) + 20] * 2,
                       len(contents + more), start, 0)  # fmt: skip
    with pytest.raises(Refused, match="overlap"):
        read_torch_file(io.BytesIO(bytes(data[:start]) + contents + more + tail))


ORDERED = b"ccollections\nOrderedDict\n"


@pytest.mark.parametrize(
    "instructions",
    [
        b"cbuiltins\neval\nX\x01\x00\x00\x001\x85R.",
        b"cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.",
        b"ctorch._utils\n_rebuild_tensor_v2\n)R.",
        b"\x80\x02K\x01r\xff\xff\xff\x7f.",  # Python would make room for 2³¹ values
        b"\x80\x02\x8e\xff\xff\xff\xff\xff\x00\x00\x00.",
        b"\x80\x02" + b"]" * 10,
        b"",
        # A dictionary made from another one: six bytes for each further copy.
        b"\x80\x02" + ORDERED + b"]K\x01N\x86a\x85R.",
        # One that hides its values, and with them how many there are.
        b"\x80\2%s)RX\1\0\0\0x%ss}X\6\0\0\0values%ssb." % (ORDERED, ORDERED, ORDERED),
    ],
)
def test_pickles_that_call_or_ask_for_something_are_refused(instructions: bytes) -> None:
    def replace(name: str, data: bytes) -> bytes:
        return instructions if name.endswith("data.pkl") else data

    file = rewritten(saved({}), replace)
    with pytest.raises(Refused):
        read_torch_file(file)


def test_the_name_of_a_storage_is_short_because_every_mention_is_a_copy() -> None:
    place = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\x64\0\0\0" + b"9" * 100 + b"NNt"
    with pytest.raises(Refused, match="a tensor without data"):
        torch_file.read_pickle(b"\x80\2" + place + b"Q.")


class OneRecord:
    def read(self) -> bytes:
        return bytes(range(16))


def test_a_record_is_kept_once_whatever_types_its_numbers_are_read_as() -> None:
    tensors = torch_file.Tensors({"data/0": OneRecord()}, 100, "cpu")
    kept = [tensors.storage(torch_file.Storage("data/0", dtype)) for dtype in DTYPES]
    assert len({each.data_ptr() for each in kept}) == 1
    assert [each.dtype for each in kept] == DTYPES
    assert kept[4].tolist() == [int.from_bytes(bytes(range(8)), "little"),
                                int.from_bytes(bytes(range(8, 16)), "little")]  # fmt: skip


def test_too_many_records_are_counted_before_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_file, "RECORDS", 3)
    with pytest.raises(Refused, match="too many records"):
        read_torch_file(saved([torch.ones(1), torch.ones(1)]))


def zipped(name: str) -> io.BytesIO:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, "x")
    return buffer


FOREIGN = {
    "a plain state dict of 2 tensors": lambda: saved(torch.nn.Linear(2, 2).state_dict()),
    "another program's checkpoint (it holds state_dict, epoch)": lambda: saved(
        {"state_dict": {}, "epoch": 3}
    ),
    "a single tensor": lambda: saved(torch.ones(2)),
    "a PyTorch file that holds a list": lambda: saved([1]),
    "(it holds Python objects": lambda: saved(torch.nn.Linear(1, 1)),
    "a pickle of Python objects": lambda: io.BytesIO(pickle.dumps({"a": 1})),
    "a ZIP archive": lambda: zipped("readme.txt"),
    "a TorchScript program": lambda: scripted(),
    "a safetensors file": lambda: io.BytesIO(struct.pack("<Q", 2) + b"{}" + bytes(20)),
    "damaged": lambda: io.BytesIO(b"\x00" * 100),
}


def scripted() -> io.BytesIO:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in ("x/data.pkl", "x/constants.pkl"):
            archive.writestr(name, "x")
    return buffer


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_file_is_called_what_it_is(kind: str) -> None:
    said = foreign.kind(FOREIGN[kind]())
    assert kind in said and ("give a run's folder" in said or kind == "damaged"), said
