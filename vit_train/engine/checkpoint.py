"""A checkpoint is one self-contained file, written atomically, sealed, and read as plain data."""

import contextlib
import hashlib
import io
import os
import random
import re
from pathlib import Path
from typing import IO, Any

import torch

from vit_train.engine import foreign
from vit_train.engine.torch_file import read_torch_file
from vit_train.files.plain import Refused
from vit_train.files.reading import open_regular
from vit_train.files.writing import replacing, sync_folder

FORMAT = "vit_train checkpoint 2"
# PyTorch writes a ZIP archive, which may end with a comment: there stands the checksum of all that
# comes before it. Any program that reads PyTorch's files reads these.
SEAL = b"sha256:"
CHUNK = 1 << 20
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
    with replacing(path) as file:
        file.write(sealed({"format": FORMAT, **content}))
        file.flush()
        os.fsync(file.fileno())  # before an older one is moved
        for age, younger in reversed(list(enumerate(generations(path)[:keep], start=1))):
            younger.replace(path.with_stem(f"{path.stem}-{age}"))
    for old in generations(path)[keep + 1 :]:
        old.unlink()
    sync_folder(path.parent)


def generations(path: Path) -> list[Path]:
    """This file and the older ones that were kept of it, those that are there, the newest first."""
    name = re.compile(rf"{re.escape(path.stem)}(-[1-9]\d*)?{re.escape(path.suffix)}")
    found = [each for each in path.parent.glob("*") if name.fullmatch(each.name)]
    return sorted(found, key=lambda each: (len(each.name), each.name))  # last-10 after last-9


def sealed(content: dict[str, Any]) -> bytes:
    """The archive, ending with its checksum."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    archive = buffer.getvalue()[:-2] + SEAL_LENGTH.to_bytes(2, "little")  # the comment's length
    return archive + SEAL + hashlib.sha256(archive).hexdigest().encode()


def has_seal(file: IO[bytes]) -> bool:
    """Whether there is a checksum at the end."""
    file.seek(max(0, file.seek(0, io.SEEK_END) - SEAL_LENGTH))
    return file.read(len(SEAL)) == SEAL


def is_whole(file: IO[bytes]) -> bool:
    """Whether the checksum at the end is that of all that comes before."""
    if not has_seal(file):
        return False
    left, digest = file.seek(0, io.SEEK_END) - SEAL_LENGTH, hashlib.sha256()
    file.seek(0)
    while chunk := file.read(min(left, CHUNK)):
        digest.update(chunk)
        left -= len(chunk)
    return file.read() == SEAL + digest.hexdigest().encode()


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
    """The file's content, plain values and tensors; it runs nothing and is as large as the file.

    ValueError if the file is missing, damaged or foreign; it says which, and names the next best.
    """
    if not path.exists():
        raise ValueError(f"no checkpoint at {path}")
    with open_regular(path) as file:
        if not is_whole(file):
            kind = foreign.UNKNOWN if has_seal(file) else foreign.kind(file)
            raise ValueError(f"cannot read {path}: it is {kind}{next_best(path)}")
        try:
            content = read_torch_file(file, device)
        except Refused as error:
            raise ValueError(
                f"{path} is not a checkpoint of this version of vit-train: {error}"
            ) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is not a checkpoint of this version of vit-train")
    return content


def next_best(path: Path) -> str:
    """The newest other checkpoint beside this one that is whole, as a hint."""
    other = newest_whole(path.parent, without=path)
    return "" if other is None else f". {other} is whole: name that"


def newest_whole(folder: Path, without: Path | None = None) -> Path | None:
    """The checkpoint written last of those that can be read and are whole."""
    files = [each for each in folder.glob("*.pt") if each != without and each.is_file()]
    for path in sorted(files, key=lambda each: each.stat().st_mtime_ns, reverse=True):
        with contextlib.suppress(OSError), path.open("rb") as file:
            if is_whole(file):
                return path
    return None
