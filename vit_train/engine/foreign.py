"""Descriptions, for error messages, of files that are not valid checkpoints of vit-train."""

import contextlib
import io
import zipfile
from typing import IO, Any

from torch import Tensor

from vit_train.engine.safetensors_file import is_safetensors
from vit_train.engine.torch_file import read_torch_file
from vit_train.files.plain_values import Refused

EXPECTED = (
    "not a checkpoint of this version of vit-train: give a run's folder, or last.pt or best.pt in "
    "its checkpoints/ (init_from= also takes weights of other libraries)"
)
UNKNOWN = "damaged, or not a checkpoint of this version of vit-train"


def kind(file: IO[bytes]) -> str:
    """Describe a file without a valid checksum, as the end of a sentence that begins "it is"."""
    file.seek(0)
    head = file.read(16)
    if not head:
        return f"empty: {UNKNOWN}"
    if zipfile.is_zipfile(file):
        return kind_of_archive(file)
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05":
        return f"a pickle of Python objects, {EXPECTED}"
    if is_safetensors(head[:9], file.seek(0, io.SEEK_END)):
        return f"a safetensors file, {EXPECTED}"
    return UNKNOWN


def kind_of_archive(file: IO[bytes]) -> str:
    with contextlib.suppress(Exception):  # reading a damaged archive can raise anything
        names = zipfile.ZipFile(file).namelist()
        if not any(name.endswith("/data.pkl") for name in names):
            return f"a ZIP archive, {EXPECTED}"
        if any(name.endswith("/constants.pkl") for name in names):
            return f"a TorchScript program, {EXPECTED}"
        try:
            return kind_of_content(read_torch_file(file))
        except Refused as error:
            if error.__cause__ is not None:
                return UNKNOWN
            return f"a PyTorch file, {EXPECTED} ({error})"
    return UNKNOWN


def kind_of_content(content: Any) -> str:
    if isinstance(content, Tensor):
        return f"a single tensor, {EXPECTED}"
    if not isinstance(content, dict):
        return f"a PyTorch file that holds a {type(content).__name__}, {EXPECTED}"
    if "format" in content and "fingerprint" in content:
        return UNKNOWN  # written by vit-train and changed since
    tensors = sum(isinstance(value, Tensor) for value in content.values())
    if tensors == len(content) > 0:
        return f"a plain state dict of {tensors} tensors, {EXPECTED}"
    keys = ", ".join(str(key) for key in list(content)[:5])
    return f"another program's checkpoint (it holds {keys}), {EXPECTED}"
