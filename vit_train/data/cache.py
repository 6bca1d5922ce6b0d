"""Cache of decoded images in the user's cache folder, keyed by file contents and settings."""

import hashlib
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import PIL
import torch

from vit_train.data.images import BrokenImage, Decoded, decode, require_reasonable
from vit_train.files.writing import replacing

logger = logging.getLogger(__name__)

# Part of every key: increase it when `decode` returns something else for the same file.
DECODER = 2


def decode_cached(paths: Sequence[Path], size: int, max_pixels: int) -> Decoded:
    """Decode the files, or load the result if the same bytes were decoded the same way before."""
    entry = cache_folder() / f"{key(paths, size, max_pixels)}.pt"
    if (kept := read(entry, len(paths), size)) is not None:
        logger.info(f"decoded images come from {entry}")
        return tried_again(kept, paths, size, max_pixels)
    decoded = decode(paths, size, max_pixels)
    write(entry, decoded)
    return decoded


def tried_again(kept: Decoded, paths: Sequence[Path], size: int, max_pixels: int) -> Decoded:
    """Decode once more what was broken: the fault may have been the machine's, not the file's."""
    if not kept.broken:
        return kept
    broken = list(kept.broken)
    again = decode([paths[index] for index in broken], size, max_pixels)
    kept.images[broken] = again.images  # in memory alone: the mapping is private
    kept.lost[broken] = again.lost
    still = {broken[index]: why for index, why in again.broken.items()}
    return Decoded(kept.images, still, kept.lost)


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "vit_train" / "decoded"


def key(paths: Sequence[Path], size: int, max_pixels: int) -> str:
    """Hash every file's bytes, in order, and the settings; names and locations do not matter."""
    whole = hashlib.sha256(f"{DECODER} {PIL.__version__} {size} {max_pixels}".encode())
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for digest in pool.map(partial(content_digest, max_pixels=max_pixels), paths):
            whole.update(digest)
    return whole.hexdigest()[:32]


def content_digest(path: Path, max_pixels: int) -> bytes:
    """Return a file's digest, or zeros if it must not be opened or cannot be read."""
    try:
        require_reasonable(path, max_pixels)
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except (BrokenImage, OSError):  # decode() will report it
        return bytes(32)


def read(entry: Path, count: int, size: int) -> Decoded | None:
    """Load an entry whose pixels stay on disk until used; return None if absent or damaged."""
    if not entry.is_file():
        return None
    try:
        kept = torch.load(entry, weights_only=True, mmap=True)
        images, broken, lost = kept["images"], kept["broken"], kept["lost"]
        if lost.dtype != torch.float32 or lost.shape != (count,):
            raise ValueError("wrong shape or dtype of the shares")
        if images.dtype != torch.uint8 or images.shape != (count, 3, size, size):
            raise ValueError("wrong shape or dtype of the images")
        if not all(index in range(count) and isinstance(broken[index], str) for index in broken):
            raise ValueError("wrong list of broken files")
        return Decoded(images, broken, lost)
    except Exception as error:
        logger.warning(f"{entry} is damaged ({type(error).__name__}): decoding again")
        return None


def write(entry: Path, decoded: Decoded) -> None:
    """Write a whole entry or none; if that fails, a warning says so."""
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with replacing(entry) as file:
            torch.save(vars(decoded), file)
    except OSError as error:
        logger.warning(f"the decoded images are not kept: {error}")
    except RuntimeError:  # PyTorch's, instead of the OSError, if a file came out too short
        logger.warning(f"the decoded images are not kept: no space left in {entry.parent}")
