"""Checkpoints with structures of any form: deep, shared, recursive, huge; and with odd values."""

import contextlib
import io
import random
import zipfile
from collections import Counter, OrderedDict
from typing import Any

import torch

from torture.forgery import Forged, archive, open_it, original, put, seal, somewhere
from torture.place import Place

# Stands in the content where a structure shall be that pickle itself cannot write.
MARK = "to be replaced"
PICKLED_MARK = b"X" + len(MARK).to_bytes(4, "little") + MARK.encode()


def make(rng: random.Random, place: Place) -> None:
    content = original(place)
    replacement = b""
    # All chosen before anything is put there that could not be walked.
    for path in [somewhere(content, rng) for _ in range(rng.choice([1, 1, 2]))]:
        if rng.random() < 0.2:
            name, path = rng.choice(list(PLACES.items()))
            value = VALUES[name](rng)
        elif rng.random() < 0.3:
            name = rng.choice(list(OPERATIONS))
            value, replacement = MARK, OPERATIONS[name]
        else:
            name = rng.choice(list(VALUES))
            value = VALUES[name](rng)
        place.note(f"{path}: {name}")
        with contextlib.suppress(LookupError, TypeError):  # what it was part of has been replaced
            put(content, path, value)
    data = archive(content)
    if replacement:
        data = with_operations(data, replacement)
    open_it(seal(data), rng, place)


def with_operations(data: bytes, replacement: bytes) -> bytes:
    """The archive with other operations of the unpickler where the mark was."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
        for each in old.infolist():
            record = old.read(each)
            if each.filename.endswith("/data.pkl"):
                record = record.replace(PICKLED_MARK, replacement)
            new.writestr(each.filename, record)
    return buffer.getvalue()


DEEP = 100_000
OPERATIONS = {
    "deep lists": b"]" * DEEP + b"a" * (DEEP - 1),
    "deep tuples": b"K\x00" + b"\x85" * DEEP,
    "deep dicts": b"}K\x00" * DEEP + b"}" + b"s" * DEEP,
    "deep, not too deep": b"]" * 900 + b"a" * 899,
    "deep pairs": b"K\x00" + b"K\x00\x86" * DEEP,
    "many memos": b"".join(b"K\x00r" + n.to_bytes(4, "little") + b"0" for n in range(DEEP)) + b"N",
    "a far memo": b"]r\xff\xff\xff\x7f",
    "a long string that is not there": b"X\xff\xff\xff\x7fabc",
    "a long integer": b"\x8b" + (10**6).to_bytes(4, "little") + b"\x01" * 10**6,
    "many integers": b"](" + b"K\x07" * 10**6 + b"e",
    "marks": b"(" * DEEP + b"N",
    "nothing on the stack": b"0" * 50,
    "another unpickler's call": b"cos\nsystem\n(X\x15\x00\x00\x00touch ../outside/eviltR",
    "getattr": b"cbuiltins\ngetattr\n(X\x01\x00\x00\x00aX\x01\x00\x00\x00btR",
    "a size of sizes": b"ctorch\nSize\n(" + b"K\x07" * 1000 + b"t\x85R",
    "a list in itself": b"]q\x7fh\x7fa",
    "a dict in itself": b"}q\x7fK\x00h\x7fs",
    "protocol 5": b"\x80\x05N",
    "the end": b".",
}


def itself(rng: random.Random) -> Any:
    inner: Any = rng.choice([[], {}])
    if isinstance(inner, list):
        inner += [inner] * rng.choice([1, 3])
    else:
        inner["self"] = inner["name"] = inner
    return inner


def shared(rng: random.Random) -> Any:
    """Small, and 2^40 large for who walks through all of it."""
    inner: Any = rng.choice(["x", 1, {"name": "vit"}])
    make = rng.choice([lambda x: [x, x], lambda x: {"a": x, "b": x}, lambda x: (x, x)])
    for _ in range(rng.choice([20, 40, 60])):
        inner = make(inner)
    return inner


def counter(rng: random.Random) -> Counter[Any]:
    return Counter({"x": 10**30, 3: -1})


INTERPOLATIONS = (
    "${oc.env:HOME}", "${oc.env:PATH,x}", "${oc.decode:'[1,2]'}", "${oc.create:{a:1}}", "${seed}",
    "${model}", "${.name}", "${config}", "${now:%Y}", "${hydra:runtime.cwd}", "${", "???",
    "${model.${task.name}}", "${" * 2000, "${oc.select:model}", "${oc.dict.keys:model}",
)  # fmt: skip
NUMBERS = (
    -1, 0, 1, 2**31, 2**53, 2**63, -(2**63), 2**64, 10**100, 10**5000, 0.5, -0.0, 1e308,
    float("nan"), float("inf"), float("-inf"), True, 1j,
)  # fmt: skip
TEXTS = (
    "", "x", "\x00", "\x1b[2J\x07", "é" * 1000, "\ud800", "a\nb", "../../x", "/etc/passwd", "|`<b>",
    "1e9", "null", "9" * 5000, "vit", "x" * 10**6, "%s%n{0}", "\u202e",
)  # fmt: skip
VALUES = {
    "in itself": itself,
    "shared": shared,
    "interpolation": lambda rng: rng.choice(INTERPOLATIONS),
    "number": lambda rng: rng.choice(NUMBERS),
    "text": lambda rng: rng.choice(TEXTS),
    "None": lambda rng: None,
    "a million names": lambda rng: [str(n) for n in range(10**6)],
    "a million times the same name": lambda rng: ["x"] * 10**6,
    "a hundred thousand keys": lambda rng: dict.fromkeys(range(10**5)),
    "names that are none": lambda rng: [None, 1, [], {"a": 1}, b"x"],
    "odd keys": lambda rng: {1: 2, None: 3, (1, 2): 4, b"x": 5, 0.5: 6, "": 8, "a.b": 9},
    "bytes": lambda rng: bytes(rng.randrange(100)),
    "bytearray": lambda rng: bytearray(3),
    "a set": lambda rng: {1, 2},
    "a counter": counter,
    "an ordered dict": lambda rng: OrderedDict(name="vit", embed_dim=8),
    "an ordered dict of no pairs": lambda rng: Forged(OrderedDict, (5,)),
    "a tensor": lambda rng: torch.zeros(rng.choice([0, 1, 3])),
    "a size": lambda rng: torch.Size([1, 2]),
    "a dtype": lambda rng: torch.float32,
    "a device": lambda rng: torch.device("cuda:3"),
    "tensors in a list": lambda rng: [torch.zeros(2)] * 3,
    "a code's name": lambda rng: {"_target_": "os.system", "name": "builtins.eval"},
    "a call": lambda rng: Forged(print, ("x",)),
    "a call of int": lambda rng: Forged(int, ("9" * 5000,)),
    "a huge string in time": lambda rng: Forged(str.__mul__, ("x", 2**40)),
    "a list of lists": lambda rng: [[0] * 1000] * 1000,
    "a dict of dicts": lambda rng: {"a": {"b": {"c": {"d": {}}}}},
    "a tuple": lambda rng: (1, "x", None),
    "image shape": lambda rng: rng.choice([[3, 2**20, 2**20], [1] * 3, [3, 8, 9], [2**40] * 3]),
    "huge counts": lambda rng: {
        "name": "shapes", "train_images": rng.choice([10**7, 10**12]), "test_images": 10**9,
        "num_classes": rng.choice([10, 10**6]), "draw_seed": 10**30,
    },
}  # fmt: skip
# Where some of them mean something.
PLACES = {
    "image shape": ("image_shape",),
    "huge counts": ("config", "data"),
    "a million names": ("classes",),
    "a million times the same name": ("classes",),
    "interpolation": ("config", "data", "root"),
    "shared": ("config", "model"),
    "in itself": ("config", "train"),
}
