import gzip
import hashlib
import io
import random
import shutil
import subprocess
import sys
import tarfile
import tracemalloc
from pathlib import Path

import loopback as server
import pytest
from loopback import Loopback

from vit_train.data.archive import Archive, extract, obtain
from vit_train.data.config import ArchiveConfig
from vit_train.data.download import CHUNK
from vit_train.data.targz import DamagedArchive

FILES = {"one.bin": random.Random(1).randbytes(5000), "two.bin": random.Random(2).randbytes(6000)}


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def tar_gz(members: list[tuple[tarfile.TarInfo | str, bytes]]) -> bytes:
    buffer = io.BytesIO()
    compressed = gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0)  # the same bytes every time
    with compressed, tarfile.open(fileobj=compressed, mode="w") as tar:
        for info, content in members:
            info = tarfile.TarInfo(info) if isinstance(info, str) else info
            if info.isreg():
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


GOOD = tar_gz([(f"./set/{name}", content) for name, content in FILES.items()])
WANTED = {f"set/{name}": md5(content) for name, content in FILES.items()}


def archive(streamed: bool = False, content: bytes = GOOD) -> Archive:
    members = {name: md5(content) for name, content in FILES.items()}
    return Archive("The Set", "set.tar.gz", md5(content), "1 kB", "set", members, 10**6, streamed)


def config(root: Path, *urls: str) -> ArchiveConfig:
    return ArchiveConfig(name="x", root=str(root), download=bool(urls), urls=list(urls))


def assert_unpacked(root: Path) -> None:
    found = {p.name: p.read_bytes() for p in (root / "set").iterdir()}
    assert found == FILES


@pytest.mark.parametrize("streamed", [False, True])
def test_downloaded_once_then_never_again(web: Loopback, tmp_path: Path, streamed: bool) -> None:
    url = web.url("/a", server.whole(GOOD))
    root = tmp_path / "new" / "data"
    for _ in range(2):
        assert obtain(archive(streamed), config(root, url)) == root / "set"
        assert_unpacked(root)
    assert len(web.requests) == 1
    assert (root / "set.tar.gz").exists() is not streamed


def test_a_damaged_member_is_unpacked_again_from_the_archive(tmp_path: Path) -> None:
    (tmp_path / "set.tar.gz").write_bytes(GOOD)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "one.bin").write_bytes(FILES["one.bin"][:-1])
    left = tmp_path / "set" / "one.bin.1-2.partial"  # by a process that was killed
    left.write_bytes(b"some")
    obtain(archive(), config(tmp_path))
    assert_unpacked(tmp_path)
    assert not left.exists()


@pytest.mark.parametrize("streamed", [False, True])
def test_a_damaged_archive_is_replaced_only_if_downloads_are_allowed(
    web: Loopback, tmp_path: Path, streamed: bool
) -> None:
    (tmp_path / "set.tar.gz").write_bytes(GOOD[:-500])
    with pytest.raises(DamagedArchive, match=r"Set data\.download=true"):
        obtain(archive(streamed), config(tmp_path))
    assert (tmp_path / "set.tar.gz").read_bytes() == GOOD[:-500]
    obtain(archive(streamed), config(tmp_path, web.url("/a", server.whole(GOOD))))
    assert_unpacked(tmp_path)


def test_a_stream_of_wrong_bytes_is_left_for_the_next_mirror(web: Loopback, tmp_path: Path) -> None:
    other = tar_gz([("set/one.bin", b"not it"), ("set/two.bin", FILES["two.bin"])])
    urls = [web.url("/a", server.whole(other)), web.url("/b", server.whole(GOOD))]
    obtain(archive(streamed=True), config(tmp_path, *urls))
    assert_unpacked(tmp_path)


def test_a_stream_that_is_cut_goes_on_where_it_was(web: Loopback, tmp_path: Path) -> None:
    cut = server.cut_once(GOOD, len(GOOD) // 2, then=server.failing(500))
    urls = [web.url("/a", cut), web.url("/b", server.whole(GOOD))]
    obtain(archive(streamed=True), config(tmp_path, *urls))
    assert_unpacked(tmp_path)
    assert web.ranges("/b") == [f"bytes={len(GOOD) // 2}-"]


@pytest.mark.parametrize("streamed", [False, True])
def test_all_mirrors_down_tells_how_to_do_it_by_hand(
    web: Loopback, tmp_path: Path, streamed: bool
) -> None:
    url = web.url("/a", server.failing(503))
    with pytest.raises(ValueError) as caught:
        obtain(archive(streamed), config(tmp_path, url))
    message = str(caught.value)
    assert url in message and "HTTP 503" in message
    assert str(tmp_path / "set.tar.gz") in message and archive().md5 in message
    assert not (tmp_path / "set").exists()


OBTAIN = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from test_archive import archive, config
from vit_train.data.archive import obtain
obtain(archive(), config(Path(sys.argv[1]), sys.argv[2]))
"""


def test_two_processes_at_once_download_once(web: Loopback, tmp_path: Path) -> None:
    url = web.url("/a", server.whole(GOOD, bytes_per_s=len(GOOD)))  # one second
    here = Path(__file__).parent
    code = OBTAIN.format(path=[str(here), str(here.parent)])
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), url]) for _ in range(2)
    ]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert_unpacked(tmp_path)
    assert len(web.requests) == 1


def link(kind: bytes, name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


HOSTILE = {
    "climbs out": [("../evil", b"x"), ("set/../../evil", b"x")],
    "absolute path": [("/tmp/vit_train_evil", b"x")],
    "symbolic link": [(link(tarfile.SYMTYPE, "set/one.bin", "../../evil"), b"")],
    "hard link": [(link(tarfile.LNKTYPE, "set/one.bin", "/etc/passwd"), b"")],
    "link as folder": [(link(tarfile.SYMTYPE, "set", ".."), b""), ("set/evil", b"x")],
    "pipe": [(link(tarfile.FIFOTYPE, "set/one.bin", ""), b"")],
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_archive_writes_nothing(tmp_path: Path, case: str) -> None:
    root = tmp_path / "deep" / "root"
    root.mkdir(parents=True)
    with pytest.raises(DamagedArchive, match="lacks"):
        extract(io.BytesIO(tar_gz(HOSTILE[case])), root, WANTED, 10**6)
    assert [p for p in tmp_path.rglob("*") if not p.is_dir()] == []
    assert not Path("/tmp/vit_train_evil").exists()


def test_a_bomb_is_bounded(tmp_path: Path) -> None:
    bomb = tar_gz([("zeros", bytes(2_000_000)), *((f"set/{k}", v) for k, v in FILES.items())])
    with pytest.raises(DamagedArchive, match="unpacks to more than"):
        extract(io.BytesIO(bomb), tmp_path, WANTED, max_bytes=10**6)
    assert list(tmp_path.iterdir()) == []


def header(kind: bytes, size: bytes, name: bytes = b"x") -> bytes:
    """A member's first block, with any 12 bytes for its size."""
    fields = (name.ljust(100, b"\0"), b"0000644\0", b"0000000\0" * 2, size.ljust(12, b"\0"))
    block = b"".join(fields) + b"00000000000\0" + b" " * 8 + kind + bytes(100) + b"ustar\x0000"
    block = block.ljust(512, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


def gzipped(*parts: bytes) -> bytes:
    return gzip.compress(b"".join(parts), 1)


def octal(size: int) -> bytes:
    return b"%011o" % size


MANY = 4_000_000  # bytes
WHOLE = gzip.decompress(GOOD)
# What stands before the files that are wanted.
TOO_MUCH = {
    **{
        f"{name} of 8 GB": (gzipped(header(kind, octal(2**33 - 1)), bytes(MANY)), "more than")
        for name, kind in {"PAX header": b"x", "global PAX header": b"g", "long name": b"L",
                           "long link": b"K", "sparse file": b"S", "file": b"0"}.items()
    },
    "size beyond 64 bits": (gzipped(header(b"0", b"\x80" + b"\xff" * 11)), "more than"),
    "negative size": (gzipped(header(b"0", b"\xff" * 11 + b"\x00")), "negative size"),
    "negative octal size": (gzipped(header(b"x", b"-0000001000")), "negative size"),
    "empty files": (gzipped(header(b"0", octal(0)) * 5_000), "more than 1,000 members"),
    "a chain of PAX headers": (gzipped(header(b"x", octal(0)) * 5_000), "more than 1,000"),
    "empty gzip members": (gzip.compress(b"") * 100_000 + GOOD, "ends too early"),
    "nothing, for long": (
        gzip.compress(b"")[:10] + b"\x00\x00\x00\xff\xff" * 500_000, "more than"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TOO_MUCH)
def test_an_archive_takes_no_more_memory_or_bytes_than_it_may(tmp_path: Path, case: str) -> None:
    content, words = TOO_MUCH[case]
    file = io.BytesIO(content)
    tracemalloc.start()
    try:
        with pytest.raises(DamagedArchive, match=words) as caught:
            extract(file, tmp_path, WANTED, 10**6)
        assert tracemalloc.get_traced_memory()[1] < 10 * CHUNK
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 100 and list(tmp_path.iterdir()) == []
    assert file.tell() <= 10**6 + CHUNK


def test_what_was_not_asked_for_is_passed_over_in_little_memory(tmp_path: Path) -> None:
    for kind in (b"x", b"L", b"0"):
        file = io.BytesIO(gzipped(header(kind, octal(MANY)), bytes(MANY + -MANY % 512), WHOLE))
        tracemalloc.start()
        extract(file, tmp_path, WANTED, 2 * MANY)
        assert tracemalloc.get_traced_memory()[1] < 10 * CHUNK
        tracemalloc.stop()
        assert_unpacked(tmp_path)


def test_a_mirror_that_sends_too_much_is_left_for_the_next(web: Loopback, tmp_path: Path) -> None:
    large = random.Random(0).randbytes(3 * 10**6)
    for size in (large, GOOD + large):
        urls = [web.url("/a", server.whole(size)), web.url("/b", server.whole(GOOD))]
        obtain(archive(), config(tmp_path, *urls))
        assert_unpacked(tmp_path)
        shutil.rmtree(tmp_path / "set")
        (tmp_path / "set.tar.gz").unlink()
    with pytest.raises(ValueError, match=r"sent more than 1,000,000 bytes"):
        obtain(archive(), config(tmp_path, urls[0]))
    assert not (tmp_path / "set.tar.gz.part").exists()


def test_a_member_of_any_size_is_not_read_to_find_that_it_is_another(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with (tmp_path / "set" / "one.bin").open("wb") as file:
        file.truncate(10**13)  # with holes: it takes no room
    with pytest.raises(ValueError, match=r"one\.bin, two\.bin missing or damaged"):
        obtain(archive(), config(tmp_path))


@pytest.mark.parametrize("length", [0, 5, 100, 5000, len(GOOD) - 500])
def test_a_truncated_archive_leaves_no_half_file(tmp_path: Path, length: int) -> None:
    with pytest.raises(DamagedArchive):
        extract(io.BytesIO(GOOD[:length]), tmp_path, WANTED, 10**6)
    for path in tmp_path.rglob("*.*"):
        assert path.read_bytes() == FILES[path.name]


def test_wrong_content_is_not_kept(tmp_path: Path) -> None:
    other = tar_gz([("set/one.bin", b"not it")])
    with pytest.raises(DamagedArchive, match=r"one\.bin in it has MD5"):
        extract(io.BytesIO(other), tmp_path, WANTED, 10**6)
    assert list((tmp_path / "set").iterdir()) == []
