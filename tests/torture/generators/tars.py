"""Archives of CIFAR-10 and STL-10 that somebody else made: bombs, damage, links, climbing names.

Links and climbing names come with the right MD5, to test what stands behind that check.
"""

import gzip
import hashlib
import random
import zlib
from pathlib import Path

from small_sets import small_cifar, small_stl10, tar_gz
from torchvision.datasets import CIFAR10

from torture.kills import SMALL, VIT
from torture.place import Place
from vit_train.data import published


class Forever:
    """Takes the place of pytest's monkeypatch: this process ends after one input."""

    def setattr(self, target: object, name: str, value: object) -> None:
        setattr(target, name, value)


def make(rng: random.Random, place: Place) -> None:
    name = rng.choice(["cifar10", "stl10"])
    made, data = place.top / "made", Path("data")
    if name == "cifar10":
        small_cifar(Forever(), made, CIFAR10)  # type: ignore[arg-type]
    else:
        small_stl10(Forever(), made)  # type: ignore[arg-type]
    [folder] = made.iterdir()
    good = tar_gz(folder)
    folder.rename(place.top / "original")
    kind = rng.choice([with_links, climbing, bomb, damaged, unchanged])
    place.note(f"{name}: {kind.__name__}")
    content = kind(good, folder.name, rng, place)
    if kind in (with_links, climbing):
        CIFAR10.tgz_md5 = published.ARCHIVE_MD5 = hashlib.md5(content).hexdigest()
    data.mkdir()
    (data / (CIFAR10.filename if name == "cifar10" else "stl10_binary.tar.gz")).write_bytes(content)
    place.run(
        "vit-train", f"data={name}", "data.root=data", *VIT, *SMALL[2:], "train.epochs=1",
        "model.patch_size=8", "hydra.run.dir=run", writes=["data", "run"],
    )  # fmt: skip
    special = [each for each in data.rglob("*") if each.is_symlink() or each.is_fifo()]
    if special:
        place.find("a link or a pipe came out of an archive", str(special))


def header(name: str, kind: bytes, link: str = "") -> bytes:
    """A member without content, as a block of 512 bytes with the right checksum."""
    start = name.encode()[:100].ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2
    rest = kind + link.encode()[:100].ljust(100, b"\0") + b"ustar\x0000"
    block = (start + b"00000000000\0" * 2 + b" " * 8 + rest).ljust(512, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def with_links(good: bytes, folder: str, rng: random.Random, place: Place) -> bytes:
    """Links, devices and pipes before the files that are wanted."""
    victim = place.outside / "victim"
    victim.write_text("a victim", encoding="utf-8")
    name = rng.choice([folder, f"{folder}/test_batch", f"{folder}/train_X.bin", "other"])
    link = rng.choice([str(victim), "../../outside/victim", "..", "../outside", name, "/dev/zero"])
    kind = rng.choice([b"1", b"2", b"3", b"4", b"6"])
    place.note(f"{name} → {link}, kind {kind!r}")
    return gzip.compress(header(name, kind, link) + gzip.decompress(good), 1, mtime=0)


def climbing(good: bytes, folder: str, rng: random.Random, place: Place) -> bytes:
    """Empty files whose names lead elsewhere, before the others."""
    prefix = rng.choice(["../", "/", "./../", "x/../../", f"{place.outside}/", "././"])
    place.note(prefix)
    added = header(f"{prefix}{folder}/test_batch", b"0")
    return gzip.compress(added + gzip.decompress(good), 1, mtime=0)


def bomb(good: bytes, folder: str, rng: random.Random, place: Place) -> bytes:
    """A few megabytes that inflate to gigabytes of zeros; their checksum comes too late."""
    compressor = zlib.compressobj(9, wbits=31)
    start = compressor.compress(header(f"{folder}/test_batch", b"0"))
    start += compressor.flush(zlib.Z_FULL_FLUSH)
    megabyte = compressor.compress(bytes(2**20)) + compressor.flush(zlib.Z_FULL_FLUSH)
    return start + megabyte * rng.choice([200, 5000]) + compressor.flush()


def damaged(good: bytes, folder: str, rng: random.Random, place: Place) -> bytes:
    data = bytearray(good[: rng.choice([len(good), rng.randrange(len(good))])])
    for _ in range(rng.choice([1, 5])):
        if data:
            data[rng.randrange(min(len(data), 3000))] = rng.randrange(256)
    return bytes(data)


def unchanged(good: bytes, folder: str, rng: random.Random, place: Place) -> bytes:
    """As it should be: so that the others fail for what is wrong with them."""
    return good
