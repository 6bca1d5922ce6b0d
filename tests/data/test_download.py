"""Everything a network does to a download, done to it by a server on this machine."""

import contextlib
import hashlib
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import loopback
import loopback as server
import pytest
from conftest import posix
from loopback import Loopback

from vit_train.data.download import DownloadError, MirroredStream, Stalled, StallLimits, fetch_file

CONTENT = random.Random(0).randbytes(3_000_000)
MD5 = hashlib.md5(CONTENT).hexdigest()
IMPATIENT = StallLimits(min_bytes_per_s=100_000, window_s=0.4, pause_s=0.01)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "archive.tar.gz"


def part_of(target: Path) -> Path:
    return target.with_name("archive.tar.gz.part")


def assert_whole(target: Path) -> None:
    assert target.read_bytes() == CONTENT and not part_of(target).exists()


def test_fresh(web: Loopback, target: Path) -> None:
    fetch_file([web.url("/a", server.whole(CONTENT))], target, MD5)
    assert_whole(target)
    assert web.requests == [("/a", None)]


def test_a_cut_connection_is_resumed_at_the_same_mirror(web: Loopback, target: Path) -> None:
    cut = server.cut_once(CONTENT, 2_000_000, then=server.whole(CONTENT))
    urls = [web.url("/a", cut), web.url("/b", server.whole(CONTENT))]
    fetch_file(urls, target, MD5, IMPATIENT)
    assert_whole(target)
    assert web.requests == [("/a", None), ("/a", "bytes=2000000-")]


def test_what_a_mirror_began_the_next_one_completes(web: Loopback, target: Path) -> None:
    cut = server.cut_once(CONTENT, 500_000, then=server.failing(503))
    urls = [web.url("/a", cut), web.url("/b", server.whole(CONTENT))]
    fetch_file(urls, target, MD5, IMPATIENT)
    assert_whole(target)
    assert web.requests == [("/a", None), ("/b", "bytes=500000-")]


def test_a_part_file_of_an_earlier_run_is_continued(web: Loopback, target: Path) -> None:
    part_of(target).write_bytes(CONTENT[:1234])
    fetch_file([web.url("/a", server.whole(CONTENT))], target, MD5)
    assert_whole(target)
    assert web.requests == [("/a", "bytes=1234-")]


def test_a_server_without_ranges_sends_again_what_is_there(web: Loopback, target: Path) -> None:
    part_of(target).write_bytes(CONTENT[:1_000_001])
    fetch_file([web.url("/a", server.without_ranges(CONTENT))], target, MD5)
    assert_whole(target)
    # At once: no second request, as it would take to mend bytes that came twice.
    assert web.requests == [("/a", "bytes=1000001-")]


def test_a_stream_begins_where_it_is_told_with_and_without_ranges(web: Loopback) -> None:
    for path, answer in (("/a", server.whole(CONTENT)), ("/b", server.without_ranges(CONTENT))):
        with MirroredStream([web.url(path, answer)], "x", start=1_000_001) as stream:
            assert stream.read() == CONTENT[1_000_001:]


@pytest.mark.parametrize("part", [b"rubbish", CONTENT + b"more", CONTENT[:-1] + b"?"])
def test_a_part_file_of_other_bytes_is_thrown_away(
    web: Loopback, target: Path, part: bytes
) -> None:
    part_of(target).write_bytes(part)
    fetch_file([web.url("/a", server.whole(CONTENT))], target, MD5)
    assert_whole(target)


def test_wrong_bytes_first_then_right_ones(web: Loopback, target: Path) -> None:
    urls = [
        web.url("/a", server.whole(b"<html>sign in</html>")),
        web.url("/b", server.whole(CONTENT)),
    ]
    fetch_file(urls, target, MD5)
    assert_whole(target)
    assert web.requests == [("/a", None), ("/b", None)]


def test_wrong_bytes_of_a_mirror_that_hangs_up_are_not_for_the_next(
    web: Loopback, target: Path
) -> None:
    cut = server.cut_once(bytes(len(CONTENT)), 500_000, then=server.failing(503))
    urls = [web.url("/a", cut), web.url("/b", server.whole(CONTENT))]
    fetch_file(urls, target, MD5, IMPATIENT)
    assert_whole(target)


def test_a_page_instead_of_the_rest_loses_nothing(web: Loopback, target: Path) -> None:
    """A mirror that sends less than is there already is left for the next one."""
    part_of(target).write_bytes(CONTENT[:1000])
    urls = [
        web.url("/a", server.without_ranges(b"<html>sign in</html>")),
        web.url("/b", server.whole(CONTENT)),
    ]
    with pytest.raises(DownloadError, match="sent 20 bytes, fewer than the 1,000 before"):
        fetch_file(urls[:1], target, MD5, IMPATIENT)
    assert part_of(target).read_bytes() == CONTENT[:1000]
    fetch_file(urls, target, MD5, IMPATIENT)
    assert_whole(target)


def test_a_stalled_mirror_is_left_for_the_next(web: Loopback, target: Path) -> None:
    trickle = web.url("/trickle", server.whole(CONTENT, bytes_per_s=10_000))
    silent = web.url("/silent", server.silent(2))
    good = web.url("/good", server.whole(CONTENT))
    began = time.monotonic()
    fetch_file([silent, trickle, good], target, MD5, IMPATIENT)
    assert time.monotonic() - began < 30  # whole(…, 10_000) would take 300
    assert_whole(target)
    assert [path for path, _ in web.requests] == ["/silent", "/trickle", "/good"]


def dripping(handler: BaseHTTPRequestHandler) -> None:
    """One wrong byte at a time, for as long as anybody listens."""
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(CONTENT)))
    handler.end_headers()
    while True:
        handler.wfile.write(b"?")
        time.sleep(0.02)


def dripping_its_head(handler: BaseHTTPRequestHandler) -> None:
    while True:
        handler.wfile.write(b"H")
        time.sleep(0.02)


@pytest.mark.parametrize("drip", [dripping, dripping_its_head])
def test_a_mirror_has_a_few_seconds_for_its_first_megabyte(
    web: Loopback, target: Path, drip: loopback.Answer, caplog: pytest.LogCaptureFixture
) -> None:
    """A low rate over a long window is only for when no mirror is faster."""
    limits = StallLimits(min_bytes_per_s=10, window_s=60, pause_s=0.01, first_s=0.3)
    urls = [web.url("/drip", drip), web.url("/good", server.whole(CONTENT))]
    began = time.monotonic()
    fetch_file(urls, target, MD5, limits)
    assert time.monotonic() - began < 10
    assert_whole(target)
    assert [path for path, _ in web.requests].count("/drip") == 1
    assert caplog.text.count(urls[0]) == 1 and urls[1] not in caplog.text


def test_a_drip_is_no_progress(web: Loopback, target: Path) -> None:
    with pytest.raises(DownloadError, match=r"/drip: only 0\.[01] kB/s") as caught:
        fetch_file([web.url("/drip", dripping)], target, MD5, replace(IMPATIENT, first_s=0.2))
    assert str(caught.value).count("/drip") == 1


def test_a_slow_line_is_given_time(web: Loopback, target: Path) -> None:
    """Of all mirrors, none is quick."""
    limits = StallLimits(min_bytes_per_s=10_000, window_s=1, pause_s=0.01, first_s=0.2)
    slow = server.whole(CONTENT, bytes_per_s=3_000_000)
    fetch_file([web.url("/a", slow), web.url("/b", slow)], target, MD5, limits)
    assert_whole(target)


@pytest.mark.parametrize(
    "status, name, value",
    [
        (206, "Content-Range", f"bytes {'9' * 5000}-5/6"),
        (200, "Content-Length", "9" * 5000),
        (302, "Location", "http://[/"),
    ],
)
def test_an_answer_that_cannot_be_read_is_the_mirrors_fault(
    web: Loopback, target: Path, status: int, name: str, value: str
) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header(name, value)
        handler.end_headers()

    urls = [web.url("/odd", answer), web.url("/good", server.whole(CONTENT))]
    with pytest.raises(DownloadError, match="/odd: ") as caught:
        fetch_file(urls[:1], target, MD5, IMPATIENT)
    assert "integer string conversion" not in str(caught.value)
    fetch_file(urls, target, MD5, IMPATIENT)
    assert_whole(target)


def test_a_redirect_is_followed(web: Loopback, target: Path) -> None:
    real = web.url("/real", server.whole(CONTENT))
    fetch_file([web.url("/old", server.redirect(real))], target, MD5)
    assert_whole(target)


def test_all_down_says_what_each_mirror_answered(web: Loopback, target: Path) -> None:
    urls = [
        web.url("/a", server.failing(503)),
        web.url("/b", server.failing(404)),
        web.url("/c", server.whole(b"something else")),
        "http://127.0.0.1:1/closed",
    ]
    with pytest.raises(DownloadError) as caught:
        fetch_file(urls, target, MD5, IMPATIENT)
    lines = str(caught.value).splitlines()
    assert "could not download archive.tar.gz" in lines[0]
    for url, words in zip(urls, ("HTTP 503", "HTTP 404", MD5, "refused"), strict=True):
        assert any(url in line and words in line for line in lines), lines
    assert not target.exists()


def test_an_interrupted_download_gives_up_with_its_bytes_kept(web: Loopback, target: Path) -> None:
    cut = server.cut_once(CONTENT, 700_000, then=server.failing(500))
    with pytest.raises(DownloadError):
        fetch_file([web.url("/a", cut)], target, MD5, IMPATIENT)
    assert part_of(target).read_bytes() == CONTENT[:700_000] and not target.exists()


def test_a_mirror_that_comes_back_is_tried_again(web: Loopback) -> None:
    def back_again(handler: object) -> None:
        first = len(web.requests) == 2
        (server.failing(502) if first else server.whole(CONTENT))(handler)  # type: ignore[arg-type]

    url = web.url("/a", server.cut_once(CONTENT, 300_000, then=back_again))
    with MirroredStream([url], "x", limits=IMPATIENT) as stream:
        assert stream.read() == CONTENT
    assert web.ranges("/a") == [None, "bytes=300000-", "bytes=300000-"]


FETCH = """
import sys
from pathlib import Path
from vit_train.data.download import fetch_file
assert "torch" not in sys.modules
fetch_file([sys.argv[1]], Path(sys.argv[2]), sys.argv[3])
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
    fetch_file([slow], target, MD5)
    assert_whole(target)
    assert web.ranges("/a") == [None, f"bytes={left}-"]


def test_a_mirror_that_leaves_bytes_out_is_left_for_the_next(web: Loopback, target: Path) -> None:
    def later(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes 2000-{len(CONTENT) - 1}/{len(CONTENT)}")
        handler.end_headers()
        handler.wfile.write(CONTENT[2000:])

    part_of(target).write_bytes(CONTENT[:1000])
    urls = [web.url("/later", later), web.url("/good", server.whole(CONTENT))]
    fetch_file(urls, target, MD5, IMPATIENT)
    assert_whole(target)
    assert web.requests == [("/later", "bytes=1000-"), ("/good", "bytes=1000-")]


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

    class Bar:
        def update(self, count: int) -> None:
            pass

    monkeypatch.setattr("time.monotonic", lambda: now)
    stream = MirroredStream([], "x", limits=StallLimits(1000, 20, 0))
    stream._bar = Bar()
    with contextlib.nullcontext() if patient else pytest.raises(Stalled, match=r"0\.9 kB/s"):
        received = list(map(len, stream._watched(Response(), patience=20)))
        assert received == rates
    stream._bar = None
