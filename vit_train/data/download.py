"""Downloads: mirrors are tried in turn, broken connections resumed and every MD5 checked."""

import hashlib
import io
import itertools
import logging
import math
import os
import re
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from tqdm import tqdm

logger = logging.getLogger(__name__)

CHUNK = 1 << 18
# A connection that delivered this many bytes before it broke is resumed at the same mirror.
WORTH_RESUMING = 1 << 20
MAX_IDLE_ROUNDS = 2
# A number of bytes in a server's answer, as a regular expression.
SIZE = r"\d{1,18}"


class DownloadError(ValueError):
    """No mirror could deliver the file; the message says what each of them answered."""


class Stalled(OSError):
    """A connection is open but delivers almost nothing."""


@dataclass(frozen=True)
class StallLimits:
    """When a connection counts as stalled, and how long to wait before trying all mirrors again.

    In the first round a mirror has `first_s` for WORTH_RESUMING bytes, as long as others are left
    to try. Where all are slower, as on a slow line, a low rate over a longer window is enough.
    """

    min_bytes_per_s: float = 10_000
    window_s: float = 20
    pause_s: float = 5
    first_s: float = 10


STALL_LIMITS = StallLimits()


def fetch_file(
    urls: Sequence[str],
    target: Path,
    md5: str,
    limits: StallLimits = STALL_LIMITS,
    max_bytes: float = math.inf,
) -> None:
    """Download `target` from the first of `urls` that delivers the bytes with this MD5.

    Incomplete bytes stay in `target`.part, and the next call resumes from there; `target` itself
    appears only when it is complete. A mirror that sends more than `max_bytes` is abandoned. Raise
    DownloadError if every mirror fails.
    """
    part = target.with_name(f"{target.name}.part")
    # Of the mirrors that are given up, and of all that had any trouble.
    failures: dict[str, str] = {}
    troubles: dict[str, str] = {}
    # First let all mirrors contribute to one file. If its MD5 is wrong, try each mirror alone.
    groups = [urls]
    while groups:
        group = groups.pop(0)
        if failures.keys() >= set(group):
            continue
        start = part.stat().st_size if part.exists() else 0
        stream = MirroredStream(group, target.name, start, limits)
        try:
            with stream, part.open("ab") as file:
                while (chunk := stream.read(CHUNK)) and stream.offset <= max_bytes:
                    file.write(chunk)
        except DownloadError:
            failures |= stream.failures
            troubles |= stream.failures
            if group is not urls:  # the bytes of one mirror alone are not for the next one
                part.unlink(missing_ok=True)
            continue
        troubles |= stream.failures
        if group is urls:  # those that had no trouble first
            groups += [[url] for url in sorted(urls, key=lambda url: url in stream.failures)]
        if stream.offset > max_bytes:
            part.unlink()
            failures |= {url: f"sent more than {max_bytes:,} bytes" for url in stream.sources}
            continue
        if has_md5(part, md5):
            os.replace(part, target)
            warn_of_others(troubles | failures, stream)
            return
        part.unlink()
        # A mirror that delivered, though not in one piece, is worth another try.
        failures |= {u: why for u, why in stream.failures.items() if u not in stream.sources}
        if start == 0 and len(stream.sources) == 1:
            failures[stream.sources[0]] = f"delivered a file whose MD5 is not {md5}"
    raise DownloadError(f"could not download {target.name}:\n{listed(failures)}")


def has_md5(path: Path, md5: str, max_bytes: float = math.inf) -> bool:
    """Return whether the file exists, has this MD5 and holds at most `max_bytes`."""
    if not path.is_file() or path.stat().st_size > max_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, new_md5).hexdigest() == md5


def new_md5() -> "hashlib._Hash":
    """Return an MD5 hash, which here guards against accidents, not against attacks.

    `usedforsecurity=False` makes it available where MD5 is banned as cryptography.
    """
    return hashlib.md5(usedforsecurity=False)


def listed(failures: dict[str, str]) -> str:
    return "\n".join(f"  - {url}: {reason}" for url, reason in failures.items())


def warn_of_others(failures: dict[str, str], stream: "MirroredStream") -> None:
    """Name the mirrors that failed, though another one delivered what was left in the end."""
    others = {url: why for url, why in failures.items() if url not in stream.sources[-1:]}
    if others:
        logger.warning(f"mirrors that failed:\n{listed(others)}")


class MirroredStream(io.RawIOBase):
    """One remote file, available from several mirrors, as a stream of its bytes from `start` on.

    A connection that breaks is resumed by an HTTP range request at the byte where it broke; one
    that delivered little, is refused or stalls is abandoned for the next mirror. After the last
    mirror, all are tried again as long as one of them delivers more than a trickle. Reading raises
    DownloadError if it cannot continue. A progress bar appears with the first bytes.
    """

    def __init__(
        self, urls: Sequence[str], name: str, start: int = 0, limits: StallLimits = STALL_LIMITS
    ) -> None:
        self.urls = urls
        self.name = name
        self.start = self.offset = start
        self.limits = limits
        self.sources: list[str] = []  # the mirrors whose bytes were used
        self.failures: dict[str, str] = {}
        self._bar: tqdm | None = None
        self._chunks = self._rounds()
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if not self._rest:
            self._rest = memoryview(next(self._chunks, b""))
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        self._chunks.close()
        if self._bar is not None:
            self._bar.close()
        super().close()

    def _rounds(self) -> Generator[bytes, None, None]:
        idle = 0
        for number in itertools.count():
            idle += 1
            for url in self.urls:
                last = number or url == self.urls[-1]
                patience = self.limits.window_s if last else self.limits.first_s
                while True:
                    at = self.offset
                    try:
                        yield from self._connection(url, patience)
                        return
                    except (OSError, HTTPException, ValueError) as error:
                        self.failures[url] = reason(error, patience)
                        delivered = self.offset - at
                        slow = isinstance(error, Stalled | TimeoutError)
                        if delivered >= (WORTH_RESUMING if slow else 1):
                            idle = 0
                        if isinstance(error, Stalled) or delivered < WORTH_RESUMING:
                            break
            if self.offset == self.start or idle == MAX_IDLE_ROUNDS:
                raise DownloadError(f"could not download {self.name}:\n{listed(self.failures)}")
            time.sleep(self.limits.pause_s)

    def _connection(self, url: str, patience: float) -> Iterator[bytes]:
        """Yield one connection's bytes beyond `offset`; raise OSError if it ends too early."""
        headers = {"User-Agent": "vit-train"}
        if self.offset:
            headers["Range"] = f"bytes={self.offset}-"
        try:
            response = opened(Request(url, headers=headers), patience)
        except HTTPError as error:
            if error.code == 416:  # the range begins at the end of the file: nothing is left
                return
            raise
        with response:
            position, total = extent(response)
            if position > self.offset:
                raise OSError(f"sent bytes from {position:,} on instead of {self.offset:,}")
            self._show(url, total)
            for chunk in self._watched(response, patience):
                position += len(chunk)
                # A server without range requests sends the file from its beginning again.
                new = position - self.offset
                if new > 0:
                    self.offset = position
                    yield chunk[-new:]
            if total is not None and position < total:
                raise OSError(f"cut off after {position:,} of {total:,} bytes")
            if position < self.offset:
                raise OSError(f"sent {position:,} bytes, fewer than the {self.offset:,} before")

    def _watched(self, response: HTTPResponse, patience: float) -> Iterator[bytes]:
        """Yield the response's chunks; raise Stalled if they arrive more slowly than allowed."""
        began, received = time.monotonic(), 0
        window, rate = self.limits.window_s, self.limits.min_bytes_per_s
        if patience < window:
            window, rate = patience, WORTH_RESUMING / patience
        while chunk := response.read1(CHUNK):
            received += len(chunk)
            elapsed = time.monotonic() - began
            if elapsed > window:
                if received < rate * elapsed:
                    raise Stalled(f"only {received / elapsed / 1000:.1f} kB/s")
                began, received = time.monotonic(), 0
                window, rate = self.limits.window_s, self.limits.min_bytes_per_s
            assert self._bar is not None
            self._bar.update(len(chunk))
            yield chunk

    def _show(self, url: str, total: int | None) -> None:
        if url not in self.sources:
            self.sources.append(url)
        if self._bar is None:
            # In a log file, one line per minute is enough.
            self._bar = tqdm(
                desc=self.name,
                unit="B",
                unit_scale=True,
                mininterval=0.1 if sys.stderr.isatty() else 60,
                dynamic_ncols=True,
            )
        self._bar.total = total
        self._bar.n = self.offset


def opened(request: Request, seconds: float) -> HTTPResponse:
    """Return a server's answer; raise TimeoutError if its head is not there in time.

    The timeout of `urlopen` is one of each wait: finding the address is not bounded, and neither
    is a head that comes a byte at a time.
    """
    answer: Future[HTTPResponse] = Future()
    Thread(target=ask, args=(request, seconds, answer), daemon=True).start()
    try:
        return answer.result(timeout=seconds)
    finally:
        del answer  # whose error would keep this frame, and its connection


def ask(request: Request, seconds: float, answer: "Future[HTTPResponse]") -> None:
    try:
        answer.set_result(urlopen(request, timeout=seconds))
    except Exception as error:
        answer.set_exception(error.with_traceback(None))


def reason(error: Exception, patience: float) -> str:
    if isinstance(error, HTTPError):
        return f"HTTP {error.code} {error.reason}"
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, TimeoutError):
        return f"no answer for {patience:g} s"
    return str(cause) or type(cause).__name__


def extent(response: HTTPResponse) -> tuple[int, int | None]:
    """Return where in the file the response begins and, if known, the size of the whole file.

    Raise OSError if a partial response does not say which part it is.
    """
    if response.status == 206:
        said = response.headers["Content-Range"] or ""
        found = re.fullmatch(rf"bytes ({SIZE})-{SIZE}/({SIZE}|\*)", said)
        if found is None:
            raise OSError("sent part of the file without saying which part")
        return int(found[1]), None if found[2] == "*" else int(found[2])
    length = response.headers["Content-Length"] or ""
    return 0, int(length) if re.fullmatch(SIZE, length) else None
