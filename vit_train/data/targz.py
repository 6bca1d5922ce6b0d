"""Streaming reader of .tar.gz files, with memory use that does not depend on their content.

Python's `tarfile` reads extension headers (long names, PAX records) whole and recursively, before
the caller can check their size. Here they are skipped like every other member that was not
requested: no file that we need depends on them.
"""

import tarfile
import zlib
from collections.abc import Iterator
from typing import IO

from vit_train.data.download import CHUNK, MirroredStream

BLOCK = 512
# Far more than any of the supported archives has.
MOST_MEMBERS = 1000


class DamagedArchive(ValueError):
    """The archive's content is not what it should be."""


class Unpacked:
    """The unpacked bytes of a gzip stream.

    Reading raises DamagedArchive if the stream is damaged, or if it or the unpacked bytes exceed
    `max_bytes`.
    """

    def __init__(self, compressed: IO[bytes] | MirroredStream, max_bytes: int) -> None:
        self.compressed, self.max_bytes = compressed, max_bytes
        self.taken = self.given = 0
        self.inflater = zlib.decompressobj(wbits=31)  # with gzip's header and checksum

    def take(self, size: int) -> Iterator[bytes]:
        """Yield the next `size` bytes in pieces."""
        self.given += size
        self.require_below_limit(self.given)
        while size:
            piece = self._inflate(min(size, CHUNK))
            size -= len(piece)
            yield piece

    def require_below_limit(self, count: int) -> None:
        if count > self.max_bytes:
            raise DamagedArchive(f"it unpacks to more than {self.max_bytes:,} bytes")

    def _inflate(self, at_most: int) -> bytes:
        """Return at least one byte and at most `at_most`."""
        while not self.inflater.eof:
            read = b""
            if not self.inflater.unconsumed_tail:
                read = self.compressed.read(CHUNK) or b""
                self.taken += len(read)
                self.require_below_limit(self.taken)  # an endless stream may unpack to nothing
            compressed = self.inflater.unconsumed_tail or read
            try:
                piece = self.inflater.decompress(compressed, at_most)
            except zlib.error as error:
                raise DamagedArchive(f"the archive is damaged ({error})") from error
            if piece:
                return piece
            if not compressed:
                break
        raise DamagedArchive("the archive is damaged: it ends too early")


def files(unpacked: Unpacked) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield each regular file's path and content.

    Read the content before requesting the next file; what is left of it is skipped. Raise
    DamagedArchive if the archive is damaged or has too many members.
    """
    for _ in range(MOST_MEMBERS):
        block = b"".join(unpacked.take(BLOCK))
        if not any(block):
            return
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.TarError as error:
            raise DamagedArchive(f"the archive is damaged ({error})") from error
        if header.size < 0:
            raise DamagedArchive("the archive is damaged: a file in it has a negative size")
        empty = header.isdir() or header.islnk() or header.issym() or header.isdev()
        size = 0 if empty else header.size
        content = unpacked.take(size)
        if header.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
            yield header.name.removeprefix("./"), content
        for rest in (content, unpacked.take(-size % BLOCK)):
            for _ in rest:
                pass
    raise DamagedArchive(f"it has more than {MOST_MEMBERS:,} members")
