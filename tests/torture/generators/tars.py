"""Archives of CIFAR-10 and STL-10 that somebody else made: bombs, lies, links, special members."""

import gzip
import os
import random
import shutil
import threading
from pathlib import Path

from small_sets import small_cifar, small_stl10
from torchvision.datasets import CIFAR10

from torture.bombs import BLOCK, gzipped_zeros
from torture.kills import SMALL, VIT
from torture.place import Place


class Forever:
    """Takes the place of pytest's monkeypatch: this process ends after one input."""

    def setattr(self, target: object, name: str, value: object) -> None:
        setattr(target, name, value)


def make(rng: random.Random, place: Place) -> None:
    name, archive, members = rng.choice([cifar, stl10])(place)
    kind = rng.choice(
        [lying_header, lying_header, special, climbing, bomb, headers, damaged, whole]
    )
    place.note(f"{name}: {kind.__name__}")
    Path("data").mkdir()
    Path("data", archive).write_bytes(kind(members, rng, place))
    place.run(
        "vit-train", f"data={name}", "data.root=data", *VIT, *SMALL[2:], "train.epochs=1",
        "model.patch_size=8", "hydra.run.dir=run", writes=["data", "run"],
    )  # fmt: skip
    inside = [each for each in Path("data").rglob("*") if each.is_symlink() or each.is_fifo()]
    if inside:
        place.find("a link or a pipe came out of an archive", str(inside))


Members = dict[str, bytes]


def cifar(place: Place) -> tuple[str, str, Members]:
    made = place.top / "made"
    small_cifar(Forever(), made, CIFAR10)  # type: ignore[arg-type]
    return "cifar10", CIFAR10.filename, members_of(made / CIFAR10.base_folder)


def stl10(place: Place) -> tuple[str, str, Members]:
    folder = small_stl10(Forever(), place.top / "made")  # type: ignore[arg-type]
    return "stl10", "stl10_binary.tar.gz", members_of(folder)


def members_of(folder: Path) -> Members:
    found = {f"{folder.name}/{each.name}": each.read_bytes() for each in sorted(folder.iterdir())}
    shutil.rmtree(folder)
    return found


def header(
    name: str, size: bytes | int, kind: bytes = b"0", link: str = "", magic: bytes = b"ustar\x0000"
) -> bytes:
    """One of 512 bytes, its checksum right; `size` as a number, or as the field's 12 bytes."""
    field = size if isinstance(size, bytes) else b"%011o\x00" % size
    data = bytearray(512)
    data[0:100] = name.encode(errors="surrogateescape")[:100].ljust(100, b"\x00")
    data[100:124] = b"0000644\x000000000\x000000000\x00"
    data[124:136] = field.ljust(12, b"\x00")[:12]
    data[136:148] = b"00000000000\x00"
    data[156:157] = kind
    data[157:257] = link.encode()[:100].ljust(100, b"\x00")
    data[257:265] = magic
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\x00 " % sum(data)
    return bytes(data)


def member(name: str, content: bytes) -> bytes:
    return header(name, len(content)) + content + bytes(-len(content) % 512)


def base_256(number: int) -> bytes:
    sign = b"\x80" if number >= 0 else b"\xff"
    return sign + (number % 2**88).to_bytes(11, "big")


def all_of(members: Members) -> bytes:
    return b"".join(member(name, content) for name, content in members.items())


def packed(data: bytes) -> bytes:
    return gzip.compress(data + bytes(1024), 1, mtime=0)


SIZES = (
    base_256(-1), base_256(-512), base_256(-(2**40)), base_256(2**40), base_256(2**63),
    base_256(2**87), b"77777777777\x00", b"-0000000001\x00", b"           \x00", b"9z", b"",
    b"00000000001\x00", b"\x80" + b"\x00" * 11,
)  # fmt: skip


def lying_header(members: Members, rng: random.Random, place: Place) -> bytes:
    """A size that is none, on a member that is wanted or on one before it, of any kind."""
    size = rng.choice(SIZES)
    kind = rng.choice([b"0", b"0", b"x", b"g", b"L", b"K", b"S", b"5", b"X", b"\x00", b"D", b"?"])
    name = rng.choice([*members, "other"])
    place.note(f"{name}, size {size!r}, kind {kind!r}")
    return packed(header(name, size, kind) + rng.choice([b"", bytes(512)]) + all_of(members))


def special(members: Members, rng: random.Random, place: Place) -> bytes:
    """Links, devices, pipes and extended headers, before what is wanted or instead of it."""
    wanted = rng.choice(list(members))
    folder = wanted.partition("/")[0]
    outside = str(place.outside / "victim")
    Path(outside).write_text("a victim", encoding="utf-8")
    name = rng.choice(
        [wanted, folder, f"{wanted}.{os.getpid()}-{threading.get_ident()}.partial", "other"]
    )
    link = rng.choice(
        [outside, "../../outside/victim", "..", "../outside", wanted, name, "/dev/zero"]
    )
    kind = rng.choice([b"1", b"2", b"3", b"4", b"6", b"7", b"S"])
    place.note(f"{name} → {link}, kind {kind!r}")
    first = header(name, 0, kind, link)
    if rng.random() < 0.3:
        record = b"30 linkpath=../outside/victim\n"
        first = member("PaxHeader", record).replace(header("PaxHeader", len(record)),
                header("PaxHeader", len(record), b"x")) + first  # fmt: skip
    rest = dict(members)
    if rng.random() < 0.5:
        rest.pop(name, None)
    return packed(first + all_of(rest))


def climbing(members: Members, rng: random.Random, place: Place) -> bytes:
    """Names that lead elsewhere."""
    prefix = rng.choice(
        ["../", "/", "./../", "x/../../", f"{place.outside}/", "./", "././", "\x00"]
    )
    place.note(prefix)
    return packed(all_of({prefix + name: content for name, content in members.items()}))


def bomb(members: Members, rng: random.Random, place: Place) -> bytes:
    """A gigabyte or more of zeros: as a member, as an extended header, or after the end."""
    kind = rng.choice([b"0", b"x", b"g", b"L", b"K", b"S", b"wanted", b"end"])
    megabytes = rng.choice([200, 1500, 5000])
    place.note(f"{kind!r}, {megabytes} MB")
    if kind == b"end":
        return gzipped_zeros(megabytes, rng.choice([b"", bytes(1024)]), all_of(members))
    name = rng.choice(list(members)) if kind == b"wanted" else "other"
    size = base_256(megabytes * BLOCK)
    if kind == b"S":
        return gzipped_zeros(megabytes, header(name, size, b"S", magic=b"ustar  \x00"))
    first = header(name, size, b"0" if kind == b"wanted" else kind, magic=b"ustar  \x00")
    return gzipped_zeros(megabytes, first, all_of(members))


def headers(members: Members, rng: random.Random, place: Place) -> bytes:
    """Very many members of no size, or headers of headers."""
    kind = rng.choice([b"0", b"5", b"2", b"x", b"g", b"L"])
    count = rng.choice([5_000, 3_000_000])
    place.note(f"{count} of kind {kind!r}")
    one = header("a" if count > 10_000 else "other", 0, kind)
    block = one * min(count, 10_000)
    data = gzip.compress(block, 1, mtime=0) * (count // min(count, 10_000))
    return data + packed(all_of(members))


def damaged(members: Members, rng: random.Random, place: Place) -> bytes:
    data = bytearray(packed(all_of(members)) if rng.random() < 0.5 else all_of(members))
    for _ in range(rng.choice([1, 5])):
        data[rng.randrange(min(len(data), 3000))] = rng.randrange(256)
    return bytes(data) if data[:2] == b"\x1f\x8b" else packed(bytes(data))


def whole(members: Members, rng: random.Random, place: Place) -> bytes:
    """As it should be: so that the others fail for what is wrong with them."""
    return packed(all_of(members))
