"""Find and read files of weights, without running any code in the files."""

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vit_train.base.reading import Refused
from vit_train.base.text import reason
from vit_train.runs.checkpoint import is_checkpoint
from vit_train.runs.paths import SUMMARY, holds_run

# Names of the files with weights in a folder, of which the first that exists is read, and its
# config files.
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
CONFIG_FILES = ("config.json", "preprocessor_config.json")
# Keys under which training programs store a state dict, averaged weights first, as in timm.
WRAPPERS = ("state_dict_ema", "model_ema", "ema", "state_dict", "model")
# Prefixes that wrappers, such as PyTorch's, add to names.
PREFIXES = re.compile(r"^((module|_orig_mod|model|backbone|vit|deit|dinov2(_with_registers)?)\.)+")


def weights_file(path: Path) -> Path | None:
    """Return the file of weights at `path`, which is a file or a folder.

    Return None if `path` is missing, or is a checkpoint, a run or a folder of runs. Raise Refused
    for a folder that contains neither weights nor a run.
    """
    if path.is_file():
        return None if is_checkpoint(path) else path
    if not path.is_dir() or holds_run(path) or any(path.glob(f"*/{SUMMARY}")):
        return None
    found = [path / name for name in WEIGHT_FILES if (path / name).is_file()]
    if not found:
        raise Refused(
            f"the folder contains neither a run nor {' nor '.join(WEIGHT_FILES)}: name the file "
            "that contains all weights"
        )
    return found[0]


def read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the state dict and the metadata of a file; only safetensors files have metadata.

    Raise Refused if the file has no state dict, or cannot be read without running code.
    """
    if zipfile.is_zipfile(path):
        return unwrapped(read_torch_file(path)), {}
    try:
        with safe_open(path, framework="pt") as file:
            state = {name: file.get_tensor(name) for name in sorted(file.keys())}
            return unwrapped(state), file.metadata() or {}
    except SafetensorError as error:
        raise Refused(
            f"it is damaged, or was not saved as safetensors or by PyTorch 1.6 or later: {error}"
        ) from error


def read_torch_file(path: Path) -> Any:
    """Return the content of a file written by `torch.save`.

    Raise Refused if the content includes anything but plain values and tensors, or if the file
    could fill the memory.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        is_stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
        if not is_stored or sum(entry.file_size for entry in entries) > path.stat().st_size:
            raise Refused("its records are compressed, or overlap")  # and could fill the memory
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # reading such a file can raise any error
        raise Refused(
            f"it cannot be read without running code or filling the memory: {reason(error)}"
        ) from error


def unwrapped(content: Any) -> dict[str, Tensor]:
    """Return the state dict in a file's content, without wrappers' prefixes in the names.

    An example of such a prefix is "module.". Raise Refused if the content has no state dict.
    """
    for _ in WRAPPERS:  # not an endless loop, because a dictionary may contain itself
        if isinstance(content, Mapping):
            inner = (content[key] for key in WRAPPERS if isinstance(content.get(key), Mapping))
            content = next(inner, content)
    found = content.items() if isinstance(content, Mapping) else ()
    state = {
        PREFIXES.sub("", name): value
        for name, value in found
        if isinstance(name, str) and isinstance(value, Tensor)
    }
    if not state:
        raise Refused("it contains no weights")
    for name, value in state.items():
        is_plain = value.layout is torch.strided and not (value.is_nested or value.is_meta)
        # A tensor may repeat a single number a billion times.
        if not is_plain or value.nbytes > value.untyped_storage().nbytes():
            raise Refused(f"{name[:80]} claims more numbers than the file contains")
    return state
