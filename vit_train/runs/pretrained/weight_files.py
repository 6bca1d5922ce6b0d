"""Files of weights: which one a path means, and what it holds, read without running any code."""

import zipfile
from pathlib import Path
from typing import Any

from vit_train.engine.checkpoint import has_seal
from vit_train.engine.foreign import kind
from vit_train.engine.safetensors_file import is_safetensors, read_safetensors
from vit_train.engine.torch_file import read_torch_file
from vit_train.files.plain_values import Refused
from vit_train.files.reading import open_regular
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
        with open_regular(path) as file:
            return None if has_seal(file) else path
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
        if path.suffix == ".safetensors" or is_safetensors(head, path.stat().st_size):
            return read_safetensors(file)
        if zipfile.is_zipfile(file):
            return read_torch_file(file), {}
        if head[:1] == b"\x80":
            raise Refused(
                "it is a bare pickle, which could run code when it is read: save the weights anew, "
                "as safetensors or with torch.save of PyTorch 1.6 or later"
            )
        raise Refused(f"it is {kind(file)}")
