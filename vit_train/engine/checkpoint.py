"""A checkpoint is one self-contained file, written atomically, sealed, and read as plain data."""

import contextlib
import hashlib
import io
import os
import random
import re
import warnings
from pathlib import Path
from typing import Any

import torch

FORMAT = "vit_train checkpoint 2"
# PyTorch writes a ZIP archive, which may end with a comment: there stands the checksum of all that
# comes before it. Any program that reads PyTorch's files reads these.
SEAL = b"sha256:"
SEAL_LENGTH = len(SEAL) + 2 * hashlib.sha256().digest_size


def rng_states() -> dict[str, Any]:
    """The random states that training draws from outside its own generators (dropout on a GPU)."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    version, internal, gauss = random.getstate()
    return {"torch": torch.get_rng_state(), "cuda": cuda, "python": [version, internal, gauss]}


def set_rng_states(states: dict[str, Any]) -> None:
    """What `rng_states` gave; those of GPUs where there are as many as there were."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    torch.set_rng_state(states["torch"].cpu())
    if torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])


def save_checkpoint(path: Path, content: dict[str, Any], keep: int = 0) -> None:
    """Write beside the target, flush to the disk, then rename: a reader sees the old or the new.

    `keep` older files stay as NAME-1.pt, the newest of them, NAME-2.pt and so on. OSError leaves
    everything as it was.
    """
    path.parent.mkdir(exist_ok=True)  # without parents: a mount that vanished is not replaced
    partial = path.with_suffix(".partial")
    try:
        with partial.open("wb") as file:
            file.write(sealed({"format": FORMAT, **content}))
            file.flush()
            os.fsync(file.fileno())
        for age, younger in reversed(list(enumerate(generations(path)[:keep], start=1))):
            younger.replace(path.with_stem(f"{path.stem}-{age}"))
        partial.replace(path)
        for old in generations(path)[keep + 1 :]:
            old.unlink()
        sync_folder(path.parent)
    except OSError:
        partial.unlink(missing_ok=True)  # on a full disk every byte counts
        raise


def generations(path: Path) -> list[Path]:
    """This file and the older ones that were kept of it, those that are there, the newest first."""
    name = re.compile(rf"{re.escape(path.stem)}(-[1-9]\d*)?{re.escape(path.suffix)}")
    found = [each for each in path.parent.glob("*") if name.fullmatch(each.name)]
    return sorted(found, key=lambda each: (len(each.name), each.name))  # last-10 after last-9


def sync_folder(folder: Path) -> None:
    """Make the renaming durable, too, where folders can be opened (not on Windows)."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sealed(content: dict[str, Any]) -> bytes:
    """The archive, ending with its checksum."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    archive = buffer.getvalue()[:-2] + SEAL_LENGTH.to_bytes(2, "little")  # the comment's length
    return archive + SEAL + hashlib.sha256(archive).hexdigest().encode()


def is_whole(data: bytes) -> bool:
    """Whether the checksum at the end is that of what comes before."""
    archive, seal = data[:-SEAL_LENGTH], data[-SEAL_LENGTH:]
    return seal == SEAL + hashlib.sha256(archive).hexdigest().encode()


def find_checkpoint(path: Path) -> Path:
    """A run folder means its best checkpoint, or its last where there is no best."""
    if not path.is_dir():
        return path
    for name in ("best.pt", "last.pt"):
        candidate = path / "checkpoints" / name
        if candidate.exists():
            return candidate
    raise ValueError(f"{path} has no checkpoints/best.pt or last.pt: name a run folder or a file")


def read_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """The file's content; only tensors and plain values are ever unpickled.

    ValueError if the file is missing, damaged or foreign; it names the next best file.
    """
    if not path.is_file():
        raise ValueError(f"no checkpoint at {path}")
    data = path.read_bytes()
    if not is_whole(data):
        raise ValueError(
            f"cannot read {path}: it is damaged, or not a checkpoint of this version of vit-train"
            + next_best(path)
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a foreign file is refused below, in our words
            content = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    except Exception as error:  # a file made by others can break the reader anywhere
        raise ValueError(f"{path} is not a checkpoint of this version of vit-train") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is not a checkpoint of this version of vit-train")
    return content


def next_best(path: Path) -> str:
    """The newest other checkpoint beside this one that is whole, as a hint."""
    other = newest_whole(path.parent, without=path)
    return "" if other is None else f". {other} is whole: name that"


def newest_whole(folder: Path, without: Path | None = None) -> Path | None:
    """The checkpoint written last of those that can be read and are whole."""
    files = [each for each in folder.glob("*.pt") if each != without]
    for path in sorted(files, key=lambda each: each.stat().st_mtime_ns, reverse=True):
        with contextlib.suppress(OSError):
            if is_whole(path.read_bytes()):
                return path
    return None
