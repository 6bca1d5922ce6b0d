"""Checkpoints whose ZIP archive is not as torch.save writes it: bombs, lies and duplicates."""

import io
import random
import struct
import warnings
import zipfile
from collections.abc import Callable

import torch

from torture.bombs import crc, deflated_zeros
from torture.forgery import open_it, seal
from torture.place import Place

LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
# Fields of a record in the central directory: offset and format.
FIELDS = {
    "flags": (8, "<H"), "method": (10, "<H"), "crc": (16, "<I"), "compressed": (20, "<I"),
    "size": (24, "<I"), "name length": (28, "<H"), "extra length": (30, "<H"),
    "comment length": (32, "<H"), "disk": (34, "<H"), "attributes": (38, "<I"),
    "offset": (42, "<I"),
}  # fmt: skip
END_FIELDS = {
    "disk": (4, "<H"), "records here": (8, "<H"), "records": (10, "<H"), "length": (12, "<I"),
    "offset": (16, "<I"),
}  # fmt: skip


def make(rng: random.Random, place: Place) -> None:
    data = (place.templates / "finished" / "checkpoints" / "last.pt").read_bytes()
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        records = {each.filename: file.read(each) for each in file.infolist()}
    kind = rng.choice([changed_fields, changed_fields, deflated, bomb, renamed, duplicates, many,
                       other_sizes, two_archives, zip64])  # fmt: skip
    place.note(kind.__name__)
    open_it(seal(kind(records, rng, place)), rng, place)


Records = dict[str, bytes]


def written(
    records: Records, method: int = zipfile.ZIP_STORED, more: Records | None = None
) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method) as file:
        warnings.simplefilter("ignore")  # duplicates are meant
        for name, content in [*records.items(), *(more or {}).items()]:
            file.writestr(name, content)
    return buffer.getvalue()


def changed_fields(records: Records, rng: random.Random, place: Place) -> bytes:
    """Some fields of the directory, or of its end."""
    data = bytearray(written(records, rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])))
    for _ in range(rng.choice([1, 1, 4])):
        start, fields = data.rindex(END), END_FIELDS
        if rng.random() < 0.8:
            starts = [n for n in range(len(data)) if data[n : n + 4] == CENTRAL]
            start, fields = rng.choice(starts), FIELDS
        name = rng.choice(list(fields))
        offset, form = fields[name]
        most = 256 ** struct.calcsize(form) - 1
        value = rng.choice([0, 1, 8, 99, most, most // 2, most - 1, rng.randrange(most)])
        place.note(f"{name} {value}")
        struct.pack_into(form, data, start + offset, value)
    return bytes(data)


def deflated(records: Records, rng: random.Random, place: Place) -> bytes:
    method = rng.choice([zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    return written(records, method)


def bomb(records: Records, rng: random.Random, place: Place) -> bytes:
    """One record is gigabytes of zeros."""
    name = rng.choice([*records, "archive/data/99", rng.choice(list(records))])
    megabytes = rng.choice([300, 1500, 3000])
    first = records.get(name, b"") if rng.random() < 0.5 else b""
    place.note(f"{name}: {megabytes} MB")
    return with_raw(records, name, deflated_zeros(megabytes, first), {
        "method": 8, "size": len(first) + megabytes * 2**20,
        "crc": crc(megabytes, first) if rng.random() < 0.5 else 1,
    })  # fmt: skip


def with_raw(records: Records, name: str, raw: bytes, fields: dict[str, int]) -> bytes:
    """The record `name` holds these bytes, and the directory says this about it."""
    data = bytearray(written(records | {name: raw}))
    for start in [n for n in range(len(data)) if data[n : n + 4] in (CENTRAL, LOCAL)]:
        local = data[start : start + 4] == LOCAL
        name_at = start + (30 if local else 46)
        if data[name_at : name_at + len(name)] == name.encode():
            for key, value in fields.items():
                offset, form = FIELDS[key]
                struct.pack_into(form, data, start + offset - (2 if local else 0), value)
    return bytes(data)


def renamed(records: Records, rng: random.Random, place: Place) -> bytes:
    """Names that climb out, are absolute, empty or long."""
    new: Callable[[str], str] = rng.choice([
        lambda name: f"../../{name}", lambda name: f"/{name}", lambda name: name.replace("/", "\\"),
        lambda name: f"{name}\x00x", lambda name: "x" * 60_000 + name, lambda name: name.upper(),
        lambda name: name.partition("/")[2], lambda name: f"é\ud7ff/{name}",
        lambda name: name.replace("data.pkl", "../outside/data.pkl"),
    ])  # fmt: skip
    return written({new(name): content for name, content in records.items()})


def duplicates(records: Records, rng: random.Random, place: Place) -> bytes:
    chosen = rng.sample(sorted(records), rng.randrange(1, 4))
    return written(
        records, more={name: rng.choice([b"", records[name], b"x" * 99]) for name in chosen}
    )


def many(records: Records, rng: random.Random, place: Place) -> bytes:
    return written(records, more={f"archive/data/{n}": b"" for n in range(1000, 61_000)})


def other_sizes(records: Records, rng: random.Random, place: Place) -> bytes:
    """Storages that are shorter or longer than the tensors they are of, or are missing."""
    result = dict(records)
    for name in rng.sample(sorted(records), rng.randrange(1, 6)):
        place.note(name)
        change = rng.choice(["cut", "empty", "long", "missing"])
        if change == "missing":
            del result[name]
        else:
            content = result[name]
            result[name] = {"cut": content[: len(content) // 2], "empty": b"", "long": content * 9}[
                change
            ]
    return written(result)


def two_archives(records: Records, rng: random.Random, place: Place) -> bytes:
    """One after the other, or one in the other's comment."""
    buffer = io.BytesIO()
    torch.save({"format": "another"}, buffer)
    return rng.choice([written(records) + buffer.getvalue(), buffer.getvalue() + written(records)])


def zip64(records: Records, rng: random.Random, place: Place) -> bytes:
    """Sizes and places that stand in 64 bits, and are larger than any file."""
    data = bytearray(written(records))
    end = data.rindex(END)
    huge = [rng.choice([0, 1, 2**32, 2**62, 2**64 - 1]) for _ in range(4)]
    place.note(huge)
    record = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, *huge)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, rng.choice([end, huge[0]]), 1)
    data[end:end] = record + locator
    place_of_end = data.rindex(END)
    struct.pack_into("<HHII", data, place_of_end + 8, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
    return bytes(data)
