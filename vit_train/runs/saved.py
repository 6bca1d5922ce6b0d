"""The settings of an earlier run, as its folder has them."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from vit_train.files.reading import read_config, require_config
from vit_train.files.text import reason
from vit_train.runs.paths import CONFIG


def own_settings(folder: Path, checkpoint: Path | None) -> dict[str, Any]:
    """Return the settings in the run's folder or, if that file is lost, in the checkpoint.

    Raise ValueError if they cannot be read.
    """
    path = folder / CONFIG
    try:
        if checkpoint is not None and not path.is_file():
            from vit_train.runs.checkpoint import Checkpoint

            path = checkpoint
            stored = Checkpoint.load(checkpoint).config
        else:
            stored = yaml_values(read_config(path), path)
        require_config(stored, str(path))
        return stored
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def yaml_values(text: str, path: Path) -> Any:
    """Return the values in the text of a config.yaml; raise ValueError, naming the file, if none.

    PyYAML raises any kind of error for a value that is not what its tag says, as in !!bool foo.
    """
    try:
        return OmegaConf.to_container(OmegaConf.create(text))
    except MemoryError:  # which says nothing about the file
        raise
    except Exception as error:
        raise ValueError(f"{path} cannot be read: {reason(error)}") from error
