"""A run's folder: its files, its lock, and how paths name runs and checkpoints."""

import contextlib
import itertools
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vit_train.base.log import logger
from vit_train.base.reading import near_path, read_object
from vit_train.base.writing import InUse, exclusive, generations
from vit_train.engine.config import BEST, LAST

PREFIX, SUFFIX = "builtin:", ".safetensors"
FOLDER = Path(__file__).parents[1] / "builtin"


def is_builtin(checkpoint: Path) -> bool:
    return checkpoint.parent == FOLDER


def builtin_names() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob(f"*{SUFFIX}"))


def builtin_checkpoint(path: str | Path) -> Path | None:
    """Return the file of `builtin:NAME`; None for any other path.

    Raise ValueError if there is no such model.
    """
    if not str(path).startswith(PREFIX):
        return None
    name = str(path).removeprefix(PREFIX)
    if name not in builtin_names():
        known = ", ".join(PREFIX + each for each in builtin_names())
        raise ValueError(f"there is no {path}: choose from {known}")
    return FOLDER / f"{name}{SUFFIX}"


# Files written at a run's first step and first save, which remain after it ends.
CONFIG, CHECKPOINTS = "config.yaml", "checkpoints"
SUMMARY = "summary.json"


@dataclass(frozen=True)
class Outcome:
    """A run's folder, best validation score, and exit status (128 + N after signal N).

    `finished` is False if the run was stopped, by a signal or by train.max_minutes.
    """

    folder: Path
    score: float | None = None
    finished: bool = True
    exit_status: int = 0


def holds_run(folder: Path) -> bool:
    return (folder / CONFIG).exists() or (folder / CHECKPOINTS).exists()


def is_finished(run: Path) -> bool:
    try:
        return read_object(run / SUMMARY).get("status") == "finished"
    except (OSError, ValueError):
        return False


def last_checkpoint(run: Path) -> Path | None:
    """Return the latest checkpoint, or None if the run ended before it wrote one.

    A run that was killed while saving may have only last-1.safetensors.
    """
    return next(iter(generations(run / CHECKPOINTS / LAST)), None)


def checkpoint_at(path: Path) -> Path:
    """Return a run's best checkpoint or, if there is none, its last.

    Raise ValueError if the run has neither. A path that is not a folder is returned unchanged.
    """
    if not path.is_dir():
        return path
    best = path / CHECKPOINTS / BEST
    found = best if best.exists() else last_checkpoint(path)
    if found is None:
        raise ValueError(
            f"{path} has no {CHECKPOINTS}/{BEST} or {LAST}, and no runs: name a run's folder, a "
            "folder of runs, or a checkpoint"
        )
    return found


def run_at(path: Path) -> Path:
    """Return the newest finished run in a folder of runs; return any other path unchanged.

    Raise ValueError if none of the runs is finished.
    """
    summaries = [] if holds_run(path) else list(path.glob(f"*/{SUMMARY}"))
    if not summaries:
        return path
    finished = [file for file in summaries if is_finished(file.parent)]
    if not finished:
        raise ValueError(
            f"none of the runs in {path} is finished: name an unfinished one to use it anyway"
        )
    run = max(finished, key=lambda file: file.lstat().st_mtime_ns).parent
    logger.info(f"taking the newest finished run: {run}")
    return run


def finished_run(path: str) -> Path:
    """Return the folder of the finished run named by `extend=`, or raise ValueError."""
    folder = run_at(Path(path))
    if not holds_run(folder):
        raise ValueError(
            f"extend={path}: there is no run in {folder}{near_path(folder)}: name the folder "
            "of a finished run, or use init_from= to start from a checkpoint's weights"
        )
    if not is_finished(folder):
        raise ValueError(
            f"extend={path}: this run is not finished: finish it with {resume_command(folder)}"
        )
    return folder


def for_shell(path: Path) -> str:
    """Quote a path for the shell if necessary."""
    return shlex.quote(str(path))


def resume_command(run: Path) -> str:
    """Return the command that resumes a run, given its folder or one of its checkpoints."""
    return f"vit-train resume={for_shell(run)}"


def resumed_run(name: str, key: str = "resume") -> tuple[Path, Path | None]:
    """Return the folder of the run that `key=` names, and the checkpoint if it names one.

    Raise ValueError if there is no run.
    """
    path = Path(name)
    named = path if path.is_file() else None
    folder = run_folder(named or path / LAST)
    if named and (folder == path.parent or path.suffix != SUFFIX):
        raise ValueError(
            f"{key}={name}: this file is not in a run's folder: name the run's folder, or a "
            f"checkpoint in its {CHECKPOINTS}/. To start a new run from the weights of this "
            f"copy, use init_from={path}"
        )
    if not (named or last_checkpoint(folder) or (folder / CONFIG).is_file()):
        raise ValueError(
            f"{key}={name}: there is no run in {folder}{near_path(folder)}; vit-results lists "
            "the unfinished runs in a folder"
        )
    return folder, named


def run_folder(checkpoint: Path) -> Path:
    """Return the folder of a checkpoint's run or, for a file copied elsewhere, the file's folder.

    A built-in model has a folder below outputs/.
    """
    if is_builtin(checkpoint):
        return Path("outputs", f"builtin-{checkpoint.stem}")
    parent = checkpoint.parent if checkpoint.parent.name else Path.cwd()
    return parent.parent if parent.name == CHECKPOINTS else parent


def summary_file(checkpoint: Path) -> Path:
    """Return the path of the summary of a checkpoint's run; the file may not exist."""
    if is_builtin(checkpoint):
        return checkpoint.with_suffix(".json")
    return run_folder(checkpoint) / SUMMARY


def calibration_file(checkpoint: Path) -> Path:
    """Return the file to which vit-eval writes the temperatures of a run's checkpoints."""
    return run_folder(checkpoint) / "calibration.json"


LOCK = ".lock"


def sole_writer(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Lock the folder within the block; raise InUse if another process has locked it."""
    return exclusive(folder / LOCK)


@contextlib.contextmanager
def new_run(folder: Path, named: bool) -> Iterator[Path]:
    """Lock a folder for a new run; raise InUse if it contains a run or is locked.

    Unless the user `named` the folder, append -2, -3 and so on to its name instead of raising. A
    run that ends before its first step leaves no files and no empty folders.
    """
    with contextlib.ExitStack() as held:
        for number in itertools.count(1):
            path = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
            try:
                held.enter_context(unused(path, named))
                break
            except InUse:
                if named:
                    raise
        yield path


@contextlib.contextmanager
def unused(folder: Path, named: bool) -> Iterator[None]:
    """Lock the folder; on exit, remove its new files unless the run has begun.

    Raise InUse if the folder already contains a run or is locked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.iterdir())
    with removed_if_empty(folder, named), sole_writer(folder):
        if holds_run(folder):
            raise InUse(
                f"{folder} already contains a run: choose another folder, or resume it with "
                f"{resume_command(folder)}"
            )
        try:
            yield
        finally:
            if not holds_run(folder):
                for path in {folder / LOCK, folder / "train.log"} - before:
                    path.unlink(missing_ok=True)


@contextlib.contextmanager
def removed_if_empty(folder: Path, named: bool) -> Iterator[None]:
    """Remove the folder on exit if it is empty.

    Unless the user `named` the folder, remove its empty parents, too, up to the current folder:
    Hydra creates outputs/NAME/TIME before the command's settings are checked.
    """
    try:
        yield
    finally:
        above = [path for path in folder.absolute().parents if Path.cwd() in path.parents]
        with contextlib.suppress(OSError):  # a folder is not empty, or has already gone
            for path in (folder, *([] if named else above)):
                path.rmdir()
