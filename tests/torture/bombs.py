"""Compressed zeros: a few megabytes that inflate to gigabytes, made in an instant."""

import gzip
import io
import zlib

BLOCK = 2**20


def deflated_zeros(megabytes: int, first: bytes = b"") -> bytes:
    """A raw deflate stream of `first` and so many megabytes of zeros."""
    compressor = zlib.compressobj(9, wbits=-15)
    start = compressor.compress(first) + compressor.flush(zlib.Z_FULL_FLUSH)
    block = compressor.compress(bytes(BLOCK)) + compressor.flush(zlib.Z_FULL_FLUSH)
    return start + block * megabytes + compressor.flush(zlib.Z_FINISH)


def crc(megabytes: int, first: bytes = b"") -> int:
    """Of what that inflates to."""
    value, zeros = zlib.crc32(first), bytes(BLOCK)
    for _ in range(megabytes):
        value = zlib.crc32(zeros, value)
    return value


def gzipped_zeros(megabytes: int, first: bytes = b"", last: bytes = b"") -> bytes:
    """A .gz file of `first`, so many megabytes of zeros and `last`; its checksum is no concern
    of who reads the first gigabyte."""
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
        file.write(first)
    body = deflated_zeros(megabytes, first)
    header, trailer = buffer.getvalue()[:10], bytes(8)
    if last:  # as another member: readers take them together
        size = (len(first) + megabytes * BLOCK) % 2**32
        trailer = crc(megabytes, first).to_bytes(4, "little") + size.to_bytes(4, "little")
    return header + body + trailer + (gzip.compress(last, mtime=0) if last else b"")
