"""Everything a network does to a download, done to it by a server on this machine."""

import hashlib
import random
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import loopback as server
import pytest
from conftest import posix
from loopback import Answer, Loopback

from vit_train.data import download as module
from vit_train.data.download import chunks_of, download

CONTENT = random.Random(0).randbytes(3_000_000)
MD5 = hashlib.md5(CONTENT).hexdigest()
LIMIT = 2 * len(CONTENT)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALL_SECONDS", 0.4)


def fetch(target: Path, *urls: str) -> None:
    download(list(urls), target, MD5, LIMIT)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "archive.tar.gz"


def part_of(target: Path) -> Path:
    return target.with_name("archive.tar.gz.part")


def assert_whole(target: Path) -> None:
    assert target.read_bytes() == CONTENT and not part_of(target).exists()


def test_fresh(web: Loopback, target: Path) -> None:
    fetch(target, web.url("/a", server.whole(CONTENT)))
    assert_whole(target)
    assert web.requests == [("/a", None)]


def test_a_cut_connection_is_resumed_at_the_same_mirror(web: Loopback, target: Path) -> None:
    cut = server.cut_once(CONTENT, 2_000_000, then=server.whole(CONTENT))
    urls = [web.url("/a", cut), web.url("/b", server.whole(CONTENT))]
    fetch(target, *urls)
    assert_whole(target)
    assert web.requests == [("/a", None), ("/a", "bytes=2000000-")]


def test_what_a_mirror_began_the_next_one_completes(web: Loopback, target: Path) -> None:
    cut = server.cut_once(CONTENT, 500_000, then=server.failing(503))
    urls = [web.url("/a", cut), web.url("/b", server.whole(CONTENT))]
    fetch(target, *urls)
    assert_whole(target)
    assert web.requests == [("/a", None), ("/b", "bytes=500000-")]


def test_a_part_file_of_an_earlier_run_is_continued(web: Loopback, target: Path) -> None:
    part_of(target).write_bytes(CONTENT[:1234])
    fetch(target, web.url("/a", server.whole(CONTENT)))
    assert_whole(target)
    assert web.requests == [("/a", "bytes=1234-")]


def test_a_server_without_ranges_sends_again_what_is_there(web: Loopback, target: Path) -> None:
    part_of(target).write_bytes(CONTENT[:1_000_001])
    fetch(target, web.url("/a", server.without_ranges(CONTENT)))
    assert_whole(target)
    # At once: no second request, as it would take to mend bytes that came twice.
    assert web.requests == [("/a", "bytes=1000001-")]


@pytest.mark.parametrize("part", [b"rubbish", CONTENT + b"more", CONTENT[:-1] + b"?"])
def test_a_part_file_of_other_bytes_is_thrown_away(
    web: Loopback, target: Path, part: bytes
) -> None:
    part_of(target).write_bytes(part)
    fetch(target, web.url("/a", server.whole(CONTENT)))
    assert_whole(target)


def test_a_page_instead_of_the_rest_loses_nothing(web: Loopback, target: Path) -> None:
    """A mirror that sends less than is there already is left for the next one."""
    part_of(target).write_bytes(CONTENT[:1000])
    urls = [
        web.url("/a", server.without_ranges(b"<html>sign in</html>")),
        web.url("/b", server.whole(CONTENT)),
    ]
    with pytest.raises(ValueError, match="fewer than the 1,000 bytes that are there"):
        fetch(target, urls[0])
    assert part_of(target).read_bytes() == CONTENT[:1000]
    fetch(target, *urls)
    assert_whole(target)


def dripping(handler: BaseHTTPRequestHandler) -> None:
    """One wrong byte at a time, for as long as anybody listens."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(CONTENT)))
    handler.end_headers()
    while True:
        handler.wfile.write(b"?")
        time.sleep(0.02)


def replies(status: int, name: str, value: str) -> Answer:
    """A server whose reply is a header that cannot be read."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header(name, value)
        handler.end_headers()

    return answer


BAD = {
    "other bytes": server.whole(b"<html>sign in</html>"),
    "other bytes, cut": server.cut_once(bytes(len(CONTENT)), 500_000, then=server.failing(503)),
    "too many bytes": server.whole(bytes(5 * LIMIT)),
    "a drip": dripping,
    "silence": server.silent(2),
    "an endless length": replies(200, "Content-Length", "9" * 5000),
    "a broken redirect": replies(302, "Location", "http://[/"),
}


@pytest.mark.parametrize("answer", BAD)
def test_a_bad_mirror_is_left_for_the_next(
    web: Loopback, target: Path, answer: str, impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    urls = [web.url("/bad", BAD[answer]), web.url("/good", server.whole(CONTENT))]
    fetch(target, *urls)
    assert_whole(target)
    assert caplog.text.count(urls[0]) == 1 and urls[1] not in caplog.text


def test_a_drip_is_no_progress(web: Loopback, target: Path, impatient: None) -> None:
    with pytest.raises(ValueError, match=r"/drip: too slow: 0\.[01] kB/s"):
        fetch(target, web.url("/drip", dripping))
    assert len(web.requests) == 1


def test_the_last_mirror_may_be_slow(
    web: Loopback, target: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MIN_RATE", 10**9)
    slow = server.whole(CONTENT, bytes_per_s=3_000_000)
    fetch(target, web.url("/a", slow), web.url("/b", slow))
    assert_whole(target)


def test_bytes_left_out_are_noticed_and_fetched(web: Loopback, target: Path) -> None:
    def later(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(206)
        handler.end_headers()
        handler.wfile.write(CONTENT[2000:])

    part_of(target).write_bytes(CONTENT[:1000])
    fetch(target, web.url("/later", later), web.url("/good", server.whole(CONTENT)))
    assert_whole(target)


def test_a_file_that_is_too_long_is_not_kept(web: Loopback, target: Path) -> None:
    with pytest.raises(ValueError, match="/endless: sent another file"):
        fetch(target, web.url("/endless", server.whole(bytes(5 * LIMIT))))
    assert not part_of(target).exists()


def test_a_redirect_is_followed(web: Loopback, target: Path) -> None:
    real = web.url("/real", server.whole(CONTENT))
    fetch(target, web.url("/old", server.redirect(real)))
    assert_whole(target)


def test_all_down_says_what_each_mirror_answered(web: Loopback, target: Path) -> None:
    urls = [
        web.url("/a", server.failing(503)),
        web.url("/b", server.failing(404)),
        web.url("/c", server.whole(b"something else")),
        "http://127.0.0.1:1/closed",
    ]
    with pytest.raises(ValueError) as caught:
        fetch(target, *urls)
    lines = str(caught.value).splitlines()
    assert "could not download archive.tar.gz" in lines[0]
    for url, words in zip(urls, ("503", "404", MD5, "refused"), strict=True):
        assert any(url in line and words in line for line in lines), lines
    assert not target.exists()


def test_an_interrupted_download_gives_up_with_its_bytes_kept(web: Loopback, target: Path) -> None:
    cut = server.cut_once(CONTENT, 700_000, then=server.failing(500))
    with pytest.raises(ValueError):
        fetch(target, web.url("/a", cut))
    assert part_of(target).read_bytes() == CONTENT[:700_000] and not target.exists()


FETCH = """
import sys
from pathlib import Path
from vit_train.data.download import download
assert "torch" not in sys.modules
download([sys.argv[1]], Path(sys.argv[2]), sys.argv[3], 10**7)
"""


@posix
def test_killed_half_way_then_run_again(web: Loopback, target: Path) -> None:
    slow = web.url("/a", server.whole(CONTENT, bytes_per_s=2_000_000))
    process = subprocess.Popen(
        [sys.executable, "-c", FETCH, slow, str(target), MD5], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not (part_of(target).exists() and part_of(target).stat().st_size > 300_000):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    left = part_of(target).stat().st_size
    assert not target.exists() and left < len(CONTENT)
    web.answers["/a"] = server.whole(CONTENT)
    fetch(target, slow)
    assert_whole(target)
    assert web.ranges("/a") == [None, f"bytes={left}-"]


@pytest.mark.parametrize(
    "rates, patient",
    [([1100] * 60, True), ([900] * 60, False), ([9000] * 30 + [900] * 60, False), ([900], True)],
)
def test_a_connection_is_stalled_below_a_rate_over_a_window(
    monkeypatch: pytest.MonkeyPatch, rates: list[int], patient: bool
) -> None:
    """So many bytes come each second."""
    now, left = 0.0, list(rates)

    class Response:
        def read1(self, limit: int) -> bytes:
            nonlocal now
            now += 1
            return bytes(left.pop(0)) if left else b""

    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr(module, "STALL_SECONDS", 20)
    with nullcontext() if patient else pytest.raises(OSError, match=r"0\.9 kB/s"):
        assert [len(chunk) for chunk in chunks_of(Response(), min_rate=1000)] == rates
