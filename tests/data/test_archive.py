import errno
import gzip
import random
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import IO

import loopback as server
import pytest
from loopback import Loopback
from small_sets import md5, tar_gz

from vit_train.config.data import ArchiveConfig
from vit_train.data.published import Archive, obtain

FILES = {"one.bin": random.Random(1).randbytes(5000), "two.bin": random.Random(2).randbytes(6000)}


GOOD = tar_gz([(f"./set/{name}", content) for name, content in FILES.items()])


def archive(content: bytes = GOOD) -> Archive:
    members = {name: md5(content) for name, content in FILES.items()}
    return Archive("The Set", "set.tar.gz", md5(content), "1 kB", "set", members)


def config(root: Path, *urls: str) -> ArchiveConfig:
    return ArchiveConfig(name="x", root=str(root), download=bool(urls), urls=list(urls))


def assert_unpacked(root: Path) -> None:
    assert {p.name: p.read_bytes() for p in (root / "set").iterdir()} == FILES


def test_an_archive_is_downloaded_only_once(web: Loopback, tmp_path: Path) -> None:
    url = web.url("/a", server.whole(GOOD))
    root = tmp_path / "new" / "data"
    for _ in range(2):
        assert obtain(archive(), config(root, url)) == root / "set"
        assert_unpacked(root)
    assert len(web.requests) == 1
    assert not (root / "set.tar.gz").exists()


def test_a_damaged_member_is_unpacked_again_from_the_archive(tmp_path: Path) -> None:
    (tmp_path / "set.tar.gz").write_bytes(GOOD)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "one.bin").write_bytes(FILES["one.bin"][:-1])
    obtain(archive(), config(tmp_path))
    assert_unpacked(tmp_path)
    assert (tmp_path / "set.tar.gz").read_bytes() == GOOD


def test_a_damaged_archive_is_replaced_only_if_downloads_are_allowed(
    web: Loopback, tmp_path: Path
) -> None:
    (tmp_path / "set.tar.gz").write_bytes(GOOD[:-500])
    with pytest.raises(
        ValueError, match=r"(?s)/set: .*data\.download=true.*data\.root=.*data=shapes"
    ):
        obtain(archive(), config(tmp_path))
    assert (tmp_path / "set.tar.gz").read_bytes() == GOOD[:-500]
    obtain(archive(), config(tmp_path, web.url("/a", server.whole(GOOD))))
    assert_unpacked(tmp_path)


OBTAIN = """
import sys
from pathlib import Path
sys.path[:0] = {path!r}
from test_archive import archive, config
from vit_train.data.published import obtain
obtain(archive(), config(Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.slow
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
def test_only_regular_files_that_are_wanted_are_written(tmp_path: Path, case: str) -> None:
    """Even from an archive that has the right MD5."""
    content, root = tar_gz(HOSTILE[case]), tmp_path / "deep" / "root"
    root.mkdir(parents=True)
    (root / "set.tar.gz").write_bytes(content)
    obtain(archive(content), config(root))
    left = {path.name for path in tmp_path.rglob("*") if not path.is_dir()}
    assert left == {"set.tar.gz", ".set.lock"} and not any(map(Path.is_symlink, root.iterdir()))
    assert not Path("/tmp/vit_train_evil").exists()


@pytest.mark.parametrize("content", [GOOD + b"?", gzip.compress(bytes(10**7)), b"", GOOD[:-1]])
def test_an_archive_with_another_md5_is_not_opened(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "set.tar.gz").write_bytes(content)
    monkeypatch.setattr(tarfile, "open", None)
    with pytest.raises(ValueError, match=rf"set\.tar\.gz \(MD5 {archive().md5}\)"):
        obtain(archive(), config(tmp_path))
    assert not (tmp_path / "set").exists()


def test_a_member_that_did_not_fit_on_the_disk_is_unpacked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: IO[bytes], file: IO[bytes], *_: object) -> None:
        file.write(source.read(100))
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "set.tar.gz").write_bytes(GOOD)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr("tarfile.copyfileobj", full)
        obtain(archive(), config(tmp_path))
    obtain(archive(), config(tmp_path))
    assert_unpacked(tmp_path)
