"""Downloads: mirrors are tried in turn, a partial file is resumed, every MD5 is checked."""

import hashlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tqdm import tqdm

logger = logging.getLogger(__name__)

CHUNK = 1 << 18  # bytes
# A connection that delivered this many bytes before it broke is resumed at the same mirror.
WORTH_RESUMING = 1 << 20
# A slower mirror is left for the next; the last one may be slow, as all are on a slow line.
MIN_RATE, LAST_MIN_RATE = 100_000, 10_000  # bytes per second
STALL_SECONDS = 10.0  # over which the rate is measured


def download(urls: list[str], target: Path, md5: str, max_bytes: int) -> None:
    """Download `target` from the first of `urls` that delivers the bytes with this MD5.

    Incomplete bytes stay in `target`.part, where the next mirror or the next call continues;
    `target` itself appears only when it is complete. Raise ValueError if every mirror fails.
    """
    part = target.with_name(f"{target.name}.part")
    failures = []
    for url in urls:
        try:
            min_rate = LAST_MIN_RATE if url == urls[-1] else MIN_RATE
            download_from(url, part, md5, max_bytes, min_rate)
        except (OSError, HTTPException, ValueError) as error:
            failures.append(f"  - {url}: {error}")
            continue
        os.replace(part, target)
        if failures:
            logger.warning("\n".join(["mirrors that failed:", *failures]))
        return
    advice = f"Or put it (MD5 {md5}) at {target.resolve()} by hand, and run the same command again"
    summary = f"could not download {target.name} from any of the {len(urls)} mirrors in data.urls"
    raise ValueError("\n".join([summary, *failures, advice]))


def download_from(url: str, part: Path, md5: str, max_bytes: int, min_rate: int) -> None:
    """Complete a partial file from one mirror; raise OSError if its MD5 is wrong then."""
    resumed = (size := size_of(part)) > 0
    while True:
        try:
            append_rest(url, part, max_bytes, min_rate)
            break
        except (OSError, HTTPException):
            before, size = size, size_of(part)
            if size - before < WORTH_RESUMING:
                raise
    if has_md5(part, md5, max_bytes):
        return
    part.unlink(missing_ok=True)
    if not resumed:
        raise OSError(f"sent another file: its MD5 is not {md5}")
    download_from(url, part, md5, max_bytes, min_rate)  # all of it from this mirror


def append_rest(url: str, part: Path, max_bytes: int, min_rate: int) -> None:
    """Append to a file what a server sends beyond its end, in one connection.

    Raise OSError if the server ends too early or is too slow; stop after `max_bytes`.
    """
    start = size_of(part)
    headers = {"User-Agent": "vit-train"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        response = urlopen(Request(url, headers=headers), timeout=STALL_SECONDS)
    except HTTPError as error:
        if error.code == 416:  # the range begins at the end of the file: nothing is left
            return
        raise
    with response, part.open("ab") as file:
        known = 0 if response.status == 206 else start  # bytes that the server sends again
        left = int(response.headers["Content-Length"] or 0)
        done = start - known
        with tqdm(
            desc=part.stem, initial=done, total=done + left if left else None,
            unit="B", unit_scale=True, mininterval=0.1 if sys.stderr.isatty() else 60,
        ) as bar:  # fmt: skip
            for chunk in chunks_of(response, min_rate):
                bar.update(len(chunk))
                file.write(chunk[known:])
                known = max(0, known - len(chunk))
                left -= len(chunk)
                if file.tell() > max_bytes:
                    return
    if known:
        raise OSError(f"sent fewer than the {start:,} bytes that are there already")
    if left > 0:
        raise OSError(f"cut off {left:,} bytes before the end")


def chunks_of(response: HTTPResponse, min_rate: int) -> Iterator[bytes]:
    """Yield a response in pieces; raise OSError if they arrive more slowly than `min_rate`."""
    began, received = time.monotonic(), 0
    while chunk := response.read1(CHUNK):
        yield chunk
        received += len(chunk)
        seconds = time.monotonic() - began
        if seconds > STALL_SECONDS:
            if received < min_rate * seconds:
                raise OSError(f"too slow: {received / seconds / 1000:.1f} kB/s")
            began, received = time.monotonic(), 0


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def has_md5(path: Path, md5: str, max_bytes: int) -> bool:
    """Check that a file exists, has this MD5 and holds at most `max_bytes`."""
    if not path.is_file() or path.stat().st_size > max_bytes:
        return False
    with path.open("rb") as file:
        # The flag makes MD5 available where it is banned as cryptography.
        digest = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False))
    return digest.hexdigest() == md5
