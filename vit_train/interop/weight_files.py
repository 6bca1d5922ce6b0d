"""Files of weights: which one a path means, and what it holds, read without running any code."""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vit_train.base.reading import JSON_NODES, Refused, open_regular, require_plain
from vit_train.base.text import reason
from vit_train.runs.checkpoint import is_checkpoint
from vit_train.runs.paths import SUMMARY, holds_run

# The files that hold a folder's weights, the first of them that exists, and those beside them.
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
CONFIG_FILES = ("config.json", "preprocessor_config.json")
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")


def weights_file(path: Path) -> Path | None:
    """Return the file of weights that a path means; None if it is a run's, or does not exist.

    Raise Refused for a folder that holds neither weights nor a run.
    """
    if path.is_file():
        return None if is_checkpoint(path) else path
    if not path.is_dir() or holds_run(path) or any(path.glob(f"*/{SUMMARY}")):
        return None
    named = [path / name for name in WEIGHT_FILES if (path / name).is_file()]
    others = [each for each in path.iterdir() if each.suffix in SUFFIXES and each.is_file()]
    if named or len(others) == 1:
        return (named or others)[0]
    if any(path.glob("*.index.json")):
        raise Refused("its weights are in several files: save them in one")
    several = f" ({len(others)} files: name one of them)" if others else ""
    raise Refused(
        f"the folder holds neither a run nor weights{several}: {', '.join(WEIGHT_FILES)}, or one "
        f"file with a name that ends in {', '.join(SUFFIXES)}"
    )


def read_weights(path: Path) -> tuple[Any, dict[str, str]]:
    """Return the content of a file and, of safetensors, its metadata; raise Refused on failure."""
    with open_regular(path) as file:
        head = file.read(9)
        size = file.seek(0, io.SEEK_END)
        if path.suffix == ".safetensors" or looks_like_safetensors(head, size):
            return read_safetensors(path)
        if zipfile.is_zipfile(file):
            require_stored(file, size)
            return read_torch_file(path), {}
    if head[:1] == b"\x80":
        raise Refused(
            "it is a bare pickle, which could run code when it is read: save the weights anew, "
            "as safetensors or with torch.save of PyTorch 1.6 or later"
        )
    raise Refused("it is neither a safetensors nor a PyTorch file")


def looks_like_safetensors(head: bytes, size: int) -> bool:
    return head[8:] == b"{" and int.from_bytes(head[:8], "little") < size


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            names = sorted(file.keys())
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except SafetensorError as error:
        raise Refused(f"it is damaged: {error}") from error


def require_stored(file: IO[bytes], size: int) -> None:
    """Raise Refused for an archive whose records could take more memory than the file."""
    try:
        entries = zipfile.ZipFile(file).infolist()
    except zipfile.BadZipFile as error:
        raise Refused("it is damaged") from error
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise Refused("its records are compressed")
    if sum(entry.file_size for entry in entries) > size:
        raise Refused("its records overlap")


def read_torch_file(path: Path) -> Any:
    """Return the plain values and tensors that `torch.save` has written; run no code."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # which reading such a file can raise, anything
        raise Refused(f"it cannot be read without running code: {reason(error)}") from error
    require_plain(content, "it", JSON_NODES, (Tensor,))
    for tensor in tensors_in(content):
        # A tensor may repeat one number a billion times.
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise Refused("it has a tensor of more numbers than the file holds")
    return content


def tensors_in(content: Any) -> Iterator[Tensor]:
    if isinstance(content, Tensor):
        yield content
    elif isinstance(content, dict | list | tuple):
        for each in content.values() if isinstance(content, dict) else content:
            yield from tensors_in(each)
