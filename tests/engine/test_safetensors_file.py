"""Safetensors files come back as written, and none can ask for more than it holds."""

import io
import json
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vit_train.engine import safetensors_file
from vit_train.engine.safetensors_file import DTYPES, read_safetensors, write_safetensors
from vit_train.files.plain_values import Refused


def written(state: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> bytes:
    file = io.BytesIO()
    write_safetensors(file, state, metadata or {})
    return file.getvalue()


def test_tensors_of_every_type_come_back_to_the_bit() -> None:
    state = {name: torch.randint(0, 2, (2, 3)).to(dtype) for name, dtype in DTYPES.items()}
    state |= {"turned": torch.randn(3, 4).t(), "scalar": torch.tensor(1.5), "none": torch.ones(0)}
    state["odd"] = torch.randn(2).new_tensor([float("nan"), float("inf")])
    read, metadata = read_safetensors(io.BytesIO(written(state, {"a": "ü"})))
    assert list(read) == list(state) and metadata == {"a": "ü"}
    for name, value in state.items():
        assert read[name].dtype == value.dtype and read[name].shape == value.shape
        assert torch.equal(read[name].flatten().view(torch.uint8),
                           value.contiguous().flatten().view(torch.uint8))  # fmt: skip


def made(header: Any, numbers: bytes = bytes(8)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + numbers


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes


ONE = written({"a": torch.ones(2)})
HARMFUL: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "claims 0 bytes"),
    "a header of 10 GB": (struct.pack("<Q", 10**10) + b"{}", "claims 10,000,000,000 bytes, but"),
    "a long header": (made(b" " * 5_000_000), "more than 4,000,000"),
    "cut off": (ONE[:-1], "cut off"),
    "more": (ONE + b"x", "more bytes than its tensors"),
    "no JSON": (made(b"{x"), "not JSON"),
    "nested": (made(b'{"a":' * 5000), "not JSON"),
    "a list": (made([]), "not a JSON object"),
    "the same name twice": (made(b'{"a":0,"a":0}'), "names a tensor twice"),
    "overlapping": (made({"a": entry(), "b": entry()}), "overlaps another"),
    "a gap": (made({"a": entry(data_offsets=[4, 12])}, bytes(12)), "or follows a gap"),
    "beyond the end": (made({"a": entry(shape=[10**12], data_offsets=[0, 4 * 10**12])}), "cut off"),
    "another product": (made({"a": entry(shape=[3])}), "of shape (3,) does not fill its 8 bytes"),
    "a negative axis": (made({"a": entry(shape=[-2])}), "no valid shape"),
    "backwards": (made({"a": entry(data_offsets=[8, 0])}), "does not fill"),
    "not numbers": (made({"a": entry(shape=["2"])}), "no valid shape"),
    "true": (made({"a": entry(shape=[True, 2])}), "no valid shape"),
    "a huge axis": (made({"a": entry(shape=[0, 2**63], data_offsets=[0, 0])}, b""), "no valid"),
    "many axes": (made({"a": entry(shape=[1] * 17 + [2])}), "no valid shape"),
    "an unknown type": (made({"a": entry(dtype="F8_E4M3")}), "of the type 'F8_E4M3'"),
    "no type": (made({"a": entry(dtype=["F32"])}), "of the type"),
    "no entry": (made({"a": 3}), "does not describe the tensor 'a'"),
    "metadata": (made({"__metadata__": {"a": 3}}, b""), "metadata are not texts"),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_what_is_not_as_it_says_is_refused_before_memory_is_taken(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, words = HARMFUL[name]
    monkeypatch.setattr(safetensors_file.torch, "empty", limited(torch.empty))
    with pytest.raises(Refused) as refusal:
        read_safetensors(io.BytesIO(content))
    assert words in str(refusal.value)


def limited(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def at_most_a_megabyte(size: int, **more: Any) -> torch.Tensor:
        assert size < 2**20
        return function(size, **more)

    return at_most_a_megabyte


def test_a_change_of_any_byte_of_the_header_does_no_harm() -> None:
    content = written({"a": torch.ones(2, 3), "b": torch.ones(4)})
    for place in range(len(content) - 40):
        for value in (0, 34, 57, 123, 255):
            changed = bytearray(content)
            changed[place] = value
            try:
                read_safetensors(io.BytesIO(changed))
            except Refused as error:
                assert len(str(error)) < 300
