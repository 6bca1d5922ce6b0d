"""Decoded images kept between runs, in the user's cache folder, keyed by all that made them."""

import hashlib
import logging
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from vit_train.data.images import Decoded, decode

logger = logging.getLogger(__name__)

# Part of every key: raise it when `decode` gives other pixels for the same file.
DECODER = 1


def decode_cached(paths: Sequence[Path], size: int, max_pixels: int) -> Decoded:
    """What `decode` returns, from the cache if the same bytes were decoded the same way before."""
    entry = cache_folder() / f"{key(paths, size, max_pixels)}.pt"
    if (kept := read(entry)) is not None:
        logger.info(f"decoded images come from {entry}")
        return kept
    decoded = decode(paths, size, max_pixels)
    write(entry, decoded)
    return decoded


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "vit_train" / "decoded"


def key(paths: Sequence[Path], size: int, max_pixels: int) -> str:
    """Every file's bytes, in order, and the settings; names and places do not matter."""
    whole = hashlib.sha256(f"{DECODER} {size} {max_pixels}".encode())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for digest in pool.map(content_digest, paths):
            whole.update(digest)
    return whole.hexdigest()[:32]


def content_digest(path: Path) -> bytes:
    if not path.is_file():
        return bytes(32)
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:  # unreadable: decode() will say so
        return bytes(32)


def read(entry: Path) -> Decoded | None:
    """The entry, its pixels left on disk until they are used; None if absent or damaged."""
    if not entry.is_file():
        return None
    try:
        kept = torch.load(entry, weights_only=True, mmap=True)
        return Decoded(kept["images"], kept["broken"])
    except Exception as error:
        logger.warning(f"{entry} is damaged ({type(error).__name__}): decoding again")
        return None


def write(entry: Path, decoded: Decoded) -> None:
    """Under a name of its own, then renamed: two writers leave one whole entry."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=entry.parent, suffix=".part", delete=False) as file:
            torch.save({"images": decoded.images, "broken": decoded.broken}, file)
        os.replace(file.name, entry)
    except OSError as error:
        logger.warning(f"the decoded images are not kept: {error}")
