"""Checkpoints: self-contained files with a checksum, written atomically, read as plain data."""

import contextlib
import hashlib
import io
import shlex
from pathlib import Path
from typing import IO, Any

import torch

from vit_train.engine import foreign
from vit_train.engine.torch_file import read_torch_file
from vit_train.files.generations import save_archive
from vit_train.files.plain_values import Refused
from vit_train.files.reading import near_path, open_regular

FORMAT = "vit_train checkpoint 2"
# PyTorch writes a ZIP archive, which may end with a comment. This comment holds the checksum of
# everything before it, so any program that reads PyTorch's files can read these, too.
SEAL = b"sha256:"
CHUNK = 1 << 20
SEAL_LENGTH = len(SEAL) + 2 * hashlib.sha256().digest_size


def rng_states() -> dict[str, Any]:
    """Return the states of the global random generators, which dropout on a GPU draws from."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"torch": torch.get_rng_state(), "cuda": cuda}


def set_rng_states(states: dict[str, Any]) -> None:
    """Restore what `rng_states` returned; GPU states only if the number of GPUs is the same."""
    torch.set_rng_state(states["torch"].cpu())
    if torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])


def save_checkpoint(path: Path, content: dict[str, Any], keep: int = 0) -> None:
    """Write a checkpoint as `save_archive` does."""
    save_archive(path, sealed(content), keep)


def sealed(content: dict[str, Any]) -> bytes:
    """Return the bytes of a checkpoint: a PyTorch archive that ends with its checksum."""
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **content}, buffer)
    buffer.seek(-2, io.SEEK_END)
    buffer.write(SEAL_LENGTH.to_bytes(2, "little"))  # the comment's length
    digest = hashlib.sha256(buffer.getbuffer()).hexdigest()
    buffer.write(SEAL + digest.encode())
    return buffer.getvalue()  # of which no copy is made


def has_seal(file: IO[bytes]) -> bool:
    """Return whether the file ends with a checksum."""
    file.seek(max(0, file.seek(0, io.SEEK_END) - SEAL_LENGTH))
    return file.read(len(SEAL)) == SEAL


def checksum(file: IO[bytes]) -> str | None:
    """Return the checksum with which the file ends; None if it is not that of all before it."""
    if not has_seal(file):
        return None
    left, digest = file.seek(0, io.SEEK_END) - SEAL_LENGTH, hashlib.sha256()
    file.seek(0)
    while chunk := file.read(min(left, CHUNK)):
        digest.update(chunk)
        left -= len(chunk)
    found = digest.hexdigest()
    return found if file.read() == SEAL + found.encode() else None


def read_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Return the content of a checkpoint file: plain values and tensors, and its "seal".

    The seal is the checksum at its end, which tells it from any other file.
    Reading runs no code from the file, and the content is no larger than the file. Raise ValueError
    if the file is missing, damaged or foreign. The message says which. If the checksum is wrong or
    absent, it also names the newest other intact checkpoint in the folder.
    """
    if not path.exists():
        raise ValueError(f"no checkpoint at {path}{near_path(path)}")
    with open_regular(path) as file:
        seal = checksum(file)
        if seal is None:
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
    return content | {"seal": seal}


def next_best(path: Path) -> str:
    """Return a hint that names the newest other intact checkpoint in the folder, if any."""
    other = newest_whole(path.parent, without=path)
    if other is None:
        return ""
    return f". {other} is intact: use it instead, or resume from it with: {resume_command(other)}"


def resume_command(path: Path) -> str:
    """Return the command that resumes a run, given by its folder or one of its checkpoints."""
    return f"vit-train resume={shlex.quote(str(path))}"


def newest_whole(folder: Path, without: Path | None = None) -> Path | None:
    """Return the most recently written checkpoint that is readable and intact, if any."""
    files = [file for file in folder.glob("*.pt") if file != without and file.is_file()]
    for path in sorted(files, key=lambda file: file.stat().st_mtime_ns, reverse=True):
        with contextlib.suppress(OSError), path.open("rb") as file:
            if checksum(file) is not None:
                return path
    return None
