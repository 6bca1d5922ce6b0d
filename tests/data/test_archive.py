import gzip
import hashlib
import io
import random
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import loopback as server
import pytest
from loopback import Loopback

from vit_train.data.archive import Archive, DamagedArchive, extract, obtain
from vit_train.data.config import ArchiveConfig

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


@pytest.fixture
def web() -> Iterator[Loopback]:
    with server.serve() as loopback:
        yield loopback


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
    obtain(archive(), config(tmp_path))
    assert_unpacked(tmp_path)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_damaged_archive_is_replaced_only_if_downloads_are_allowed(
    web: Loopback, tmp_path: Path, streamed: bool
) -> None:
    (tmp_path / "set.tar.gz").write_bytes(GOOD[:-500])
    with pytest.raises(DamagedArchive, match="Remove it"):
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


@pytest.mark.parametrize("length", [0, 5, 100, 5000, len(GOOD) - 500])
def test_a_truncated_archive_leaves_no_half_file(tmp_path: Path, length: int) -> None:
    with pytest.raises(DamagedArchive):
        extract(io.BytesIO(GOOD[:length]), tmp_path, WANTED, 10**6)
    for path in tmp_path.rglob("*.bin"):
        assert path.read_bytes() == FILES[path.name]


def test_wrong_content_is_not_kept(tmp_path: Path) -> None:
    other = tar_gz([("set/one.bin", b"not it")])
    with pytest.raises(DamagedArchive, match=r"one\.bin in it has MD5"):
        extract(io.BytesIO(other), tmp_path, WANTED, 10**6)
    assert list((tmp_path / "set").iterdir()) == []
