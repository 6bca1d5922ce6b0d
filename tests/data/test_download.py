"""Everything a network does to a download, done to it by a server on this machine."""

import hashlib
import random
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import loopback as server
import pytest
from loopback import Answer, Loopback

from vit_train.data import published as module
from vit_train.data.published import download

CONTENT = random.Random(0).randbytes(3_000_000)
MD5 = hashlib.md5(CONTENT).hexdigest()
LIMIT = 2 * len(CONTENT)


def fetch(target: Path, *urls: str) -> None:
    download(list(urls), target, MD5)


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "MAX_BYTES", LIMIT)
    return tmp_path / "archive.tar.gz"


def part_of(target: Path) -> Path:
    return target.with_name("archive.tar.gz.part")


def assert_whole(target: Path) -> None:
    assert target.read_bytes() == CONTENT and not part_of(target).exists()


def test_a_cut_connection_is_resumed_at_the_next_mirror_or_the_same(
    web: Loopback, target: Path
) -> None:
    cut = server.cut_once(CONTENT, 2_000_000, then=server.whole(CONTENT))
    urls = [web.url("/a", cut), web.url("/b", server.failing(503))]
    fetch(target, *urls)
    assert_whole(target)
    rest = "bytes=2000000-"
    assert web.requests == [("/a", "bytes=0-"), ("/b", rest), ("/a", rest)]


@pytest.mark.parametrize("serve", [server.whole, server.without_ranges])
def test_a_part_file_of_an_earlier_run_is_continued_or_all_is_sent_again(
    web: Loopback, target: Path, serve: Callable[[bytes], Answer]
) -> None:
    part_of(target).write_bytes(CONTENT[:1_000_001])
    fetch(target, web.url("/a", serve(CONTENT)))
    assert_whole(target)
    assert web.requests == [("/a", "bytes=1000001-")]


@pytest.mark.parametrize("part", [b"rubbish", CONTENT + b"more", CONTENT[:-1] + b"?"])
def test_a_part_file_of_other_bytes_is_thrown_away(
    web: Loopback, target: Path, part: bytes
) -> None:
    part_of(target).write_bytes(part)
    fetch(target, web.url("/a", server.whole(CONTENT)))
    assert_whole(target)


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
    "silence": server.silent(2),
    "an endless length": replies(200, "Content-Length", "9" * 5000),
    "a broken redirect": replies(302, "Location", "http://[/"),
}


@pytest.mark.parametrize("answer", BAD)
def test_a_bad_mirror_is_left_for_the_next(
    web: Loopback, target: Path, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, check = [], module.has_md5
    noted = lambda path, md5: sizes.append(path.stat().st_size) or check(path, md5)  # noqa: E731
    monkeypatch.setattr(module, "has_md5", noted)
    monkeypatch.setattr(module, "STALL_SECONDS", 1.0 if answer == "silence" else 30)
    fetch(target, web.url("/bad", BAD[answer]), web.url("/good", server.whole(CONTENT)))
    assert_whole(target)
    assert max(sizes) <= LIMIT + 2**18  # the last block that is read


def test_bytes_left_out_are_noticed_and_fetched(web: Loopback, target: Path) -> None:
    def later(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(206)
        handler.end_headers()
        handler.wfile.write(CONTENT[2000:])

    part_of(target).write_bytes(CONTENT[:1000])
    fetch(target, web.url("/later", later), web.url("/good", server.whole(CONTENT)))
    assert_whole(target)


def test_the_error_lists_the_failure_of_each_mirror(web: Loopback, target: Path) -> None:
    urls = [
        web.url("/a", server.failing(503)),
        web.url("/b", server.failing(404)),
        web.url("/c", server.whole(b"something else")),
        web.url("/d", server.whole(bytes(5 * LIMIT))),
        "http://127.0.0.1:1/closed",
    ]
    with pytest.raises(ValueError) as caught:
        fetch(target, *urls)
    lines = str(caught.value).splitlines()
    assert "could not download archive.tar.gz" in lines[0]
    for url, words in zip(urls, ("503", "404", MD5, MD5, "refused"), strict=True):
        assert any(url in line and words in line for line in lines), lines
    assert not target.exists() and not part_of(target).exists()
