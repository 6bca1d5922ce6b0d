"""The run to resume, its checkpoint and its settings."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from vit_train.engine.errors import reason
from vit_train.files.plain_values import require_config
from vit_train.files.reading import near_path, read_config, read_json
from vit_train.runs.lock import CONFIG


def split_path(resume: str) -> tuple[Path, Path | None]:
    """Return the run's folder and, if the path names one, the checkpoint to resume from.

    Raise ValueError if there is no run.
    """
    path = Path(resume)
    if not path.exists():
        raise ValueError(f"resume={resume}: there is no such folder{near_path(path)}")
    if path.is_dir() and path.name == "checkpoints":
        path = path.absolute().parent if path.parent == Path() else path.parent
    if path.is_file() and path.suffix != ".pt":
        raise ValueError(f"resume={resume}: this is not a checkpoint: name the run's folder")
    if path.is_file() and path.absolute().parent.name != "checkpoints":
        raise ValueError(
            f"resume={resume}: a run goes on in its own folder, from RUN/checkpoints/{path.name}; "
            f"init_from={path} begins a new run with this copy's weights"
        )
    if path.is_file() and path.parent == Path():  # named inside its folder
        path = path.absolute()
    folder = path.parent.parent if path.is_file() else path
    named = path if path.is_file() else None
    if not (named or newest_checkpoint(folder) or (folder / CONFIG).is_file()):
        below = (each.parent for depth in ("*", "*/*") for each in folder.glob(f"{depth}/{CONFIG}"))
        runs = [each for each in below if not is_finished(each)]
        hint = f". Unfinished runs below it: {', '.join(map(str, sorted(runs)[-5:]))}"
        raise ValueError(
            f"resume={resume}: there is no run in {folder} to resume{hint if runs else ''}"
        )
    return folder, named


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint, or None if the run ended before it wrote one."""
    from vit_train.engine.checkpoint import generations  # imports torch: not for --help

    return next(iter(generations(folder / "checkpoints" / "last.pt")), None)


def is_finished(folder: Path) -> bool:
    try:
        summary = read_json(folder / "summary.json")
    except (OSError, ValueError):
        return False
    return isinstance(summary, dict) and summary.get("status") == "finished"


def own_settings(folder: Path, checkpoint: Path | None) -> dict[str, Any]:
    """Return the settings in the run's folder or, if that file is lost, in the checkpoint.

    Raise ValueError if they cannot be read.
    """
    path = folder / CONFIG
    try:
        if checkpoint is not None and not path.is_file():
            from vit_train.engine.checkpoint import read_checkpoint

            path = checkpoint
            stored = read_checkpoint(checkpoint).get("config")
        else:
            stored = parsed(read_config(path), path)
        require_config(stored, str(path))
        return stored  # type: ignore[return-value]
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def parsed(text: str, path: Path) -> Any:
    """Return the values in the text of a config.yaml; raise ValueError, naming the file, if none.

    PyYAML raises any kind of error for a value that is not what its tag says, as in !!bool foo.
    """
    try:
        return OmegaConf.to_container(OmegaConf.create(text))
    except MemoryError:  # which says nothing about the file
        raise
    except Exception as error:
        raise ValueError(f"{path} cannot be read: {reason(error)}") from error
