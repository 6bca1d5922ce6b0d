"""A run's folder: its files, its lock, and which run or checkpoint a path names."""

import contextlib
import itertools
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vit_train.base.log import logger
from vit_train.base.reading import near_path, read_object, typed
from vit_train.base.text import counted, file_name
from vit_train.base.writing import InUse, exclusive, generations

PREFIX = "builtin:"
SUFFIX = ".safetensors"
FOLDER = Path(__file__).parents[1] / "builtin"


def is_builtin(checkpoint: Path) -> bool:
    return checkpoint.parent == FOLDER


def builtin_checkpoint(path: str | Path) -> Path | None:
    """Return the file of the built-in model `builtin:NAME`, or None for any other path.

    Raise ValueError if there is no built-in model called NAME.
    """
    if not str(path).startswith(PREFIX):
        return None
    files = {f"{PREFIX}{file.stem}": file for file in sorted(FOLDER.glob(f"*{SUFFIX}"))}
    if str(path) not in files:
        raise ValueError(f"there is no {path}: choose from {', '.join(files)}")
    return files[str(path)]


# Files written at a run's first step and first save, which remain after it ends.
CONFIG = "config.yaml"
CHECKPOINTS = "checkpoints"
# In CHECKPOINTS, the files of the best epoch by validation and of the latest state.
BEST = "best.safetensors"
LAST = "last.safetensors"
# The settings as the user wrote them; CONFIG has a value for every setting that these leave open.
REQUESTED = "requested.yaml"
SUMMARY = "summary.json"


@dataclass(frozen=True)
class Launch:
    """How a run was started."""

    # The command that starts the same run.
    command: str
    # The settings and groups in that command, or that its sweep varied.
    chosen: Sequence[str] = ()
    in_sweep: bool = False


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run: its folder, best validation score (or None) and exit status.

    The exit status is 128 + N after signal N, otherwise 0. `finished` is False if a signal or
    train.max_minutes stopped the run.
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
    """Return the latest checkpoint of a run, or None if the run has not saved a checkpoint.

    A run that was killed while saving may have only last-1.safetensors.
    """
    return next(iter(generations(run / CHECKPOINTS / LAST)), None)


def checkpoint_at(path: Path) -> Path:
    """Return the best checkpoint in a run's folder or, if there is none, the last checkpoint.

    Raise ValueError if both are missing. A path that is not a folder is returned unchanged.
    """
    if not path.is_dir():
        return path
    best = path / CHECKPOINTS / BEST
    found = best if best.exists() else last_checkpoint(path)
    if found is None:
        raise ValueError(
            f"{path} has no {CHECKPOINTS}/{BEST} or {LAST}, and no runs: name a run's folder, a "
            f"folder of runs, or a checkpoint{near_run(path)}"
        )
    return found


def near_run(path: Path) -> str:
    """Return the hint ", did you mean RUN?" for a path without a checkpoint; "" if none is near.

    RUN is the last run below the folder, or else has a similar name.
    """
    folder = path.parents[1] if path.parent.name == CHECKPOINTS else path
    runs = [each.parent for depth in ("*", "*/*") for each in folder.glob(f"{depth}/{CONFIG}")]
    return f", did you mean {max(runs)}?" if runs else near_path(path) or near_path(folder)


def run_at(path: Path) -> Path:
    """Return the newest finished run in a folder of runs; return any other path unchanged.

    Log the run with its validation result and, if it is better, that of the best run. Raise
    ValueError if no run in the folder is finished.
    """
    summaries = [] if holds_run(path) else list(path.glob(f"*/{SUMMARY}"))
    if not summaries:
        return path
    finished = [file for file in summaries if is_finished(file.parent)]
    if not finished:
        raise ValueError(
            f"none of the runs in {path} is finished: to use an unfinished run, name its own folder"
        )
    run = max(finished, key=lambda file: file.lstat().st_mtime_ns).parent
    results = {file.parent: validation(file.parent) for file in finished}
    best = max(results, key=lambda each: results[each][0])
    better = f"; the best is {best} ({results[best][1]})" if results[best] > results[run] else ""
    logger.info(
        f"using the newest of {counted(len(finished), 'finished run')}: {run} "
        f"({results[run][1]}){better}"
    )
    return run


def validation(run: Path) -> tuple[float, str]:
    """Return a finished run's best validation result: a score, higher is better, and in words."""
    stored = read_object(run / SUMMARY).get("best_val") or {}
    found = typed(dict[str, float | None], stored, "best_val")
    for name, sign, words in (
        ("acc", 1, "validation accuracy {:.2%}"),
        ("map", 1, "validation mAP {:.2%}"),
        ("loss", -1, "validation loss {:.4f}"),
    ):
        if (value := found.get(name)) is not None:
            return sign * value, words.format(value)
    return -math.inf, "no validation"


def finished_run(path: str) -> Path:
    """Return the folder of the run that `extend=` names.

    Raise ValueError if the run is not finished.
    """
    folder = run_at(Path(path))
    if not holds_run(folder):
        raise ValueError(
            f"extend={path}: there is no run in {folder}{near_run(folder)}: name the folder "
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
    """Return the command that resumes a run, given the run's folder or one of its checkpoints."""
    return f"vit-train resume={for_shell(run)}"


def resumed_run(name: str, key: str = "resume") -> tuple[Path, Path | None]:
    """Return the run's folder and the checkpoint that the argument `key`=`name` names.

    The checkpoint is None if `name` is a run's folder. Raise ValueError if `name` is neither a
    run's folder nor a checkpoint in a run's folder.
    """
    path = Path(name)
    named = path if path.is_file() else None
    folder = run_folder(named or path / LAST)
    if named and (folder.samefile(path.parent) or path.suffix != SUFFIX):
        other = f". To start a new run from its weights, use init_from={path}"
        raise ValueError(
            f"{key}={name}: this is not a checkpoint in a run's {CHECKPOINTS}/: name one, or the "
            f"run's folder{other if path.suffix == SUFFIX else ''}"
        )
    if not (named or last_checkpoint(folder) or (folder / CONFIG).is_file()):
        raise ValueError(
            f"{key}={name}: there is no run in {folder}{near_run(folder)} (vit-results lists the "
            "unfinished runs in a folder)"
        )
    return folder, named


def run_folder(checkpoint: Path) -> Path:
    """Return the folder of a checkpoint's run or, for a file copied elsewhere, the file's folder.

    For a built-in model, return a folder below outputs/.
    """
    if is_builtin(checkpoint):
        return Path("outputs", f"builtin-{checkpoint.stem}")
    parent = checkpoint.parent if checkpoint.parent.name else Path.cwd()
    return parent.parent if parent.name == CHECKPOINTS else parent


def summary_file(checkpoint: Path) -> Path:
    """Return the path of the summary of a checkpoint's run; this file may be missing."""
    if is_builtin(checkpoint):
        return checkpoint.with_suffix(".json")
    return run_folder(checkpoint) / SUMMARY


def calibration_file(checkpoint: Path) -> Path:
    """Return the path of the file where vit-eval stores the calibration of a run's checkpoints."""
    return run_folder(checkpoint) / "calibration.json"


def name_unless_best(checkpoint: Path) -> str:
    """Return a checkpoint's name for that of a folder; "" for the best and for built-in models."""
    is_best = checkpoint.name == BEST or is_builtin(checkpoint)
    return "" if is_best else file_name(checkpoint.name.removesuffix(SUFFIX))


LOCK = ".lock"


def sole_writer(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Within the block, lock the folder; raise InUse if another process has already locked it."""
    return exclusive(folder / LOCK)


@contextlib.contextmanager
def new_run(folder: Path, named: bool) -> Iterator[Path]:
    """Within the block, lock a folder for a new run; yield the folder's path.

    If the folder already contains a run or is locked, append -2, -3 and so on to the folder's
    name. If the user `named` the folder, raise InUse instead. If the run ends before its first
    step, remove the run's files and empty folders.
    """
    with contextlib.ExitStack() as held:
        for number in itertools.count(1):
            path = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
            try:
                held.enter_context(locked_without_run(path, named))
                break
            except InUse:
                if named:
                    raise
        yield path


@contextlib.contextmanager
def locked_without_run(folder: Path, named: bool) -> Iterator[None]:
    """Within the block, lock the folder; on exit, clean up if no run has begun.

    Cleaning up removes the lock file and the log file, unless they already existed, and the folder
    if it is empty. Raise InUse if the folder already contains a run or is locked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.iterdir())
    with removed_if_empty(folder, named), sole_writer(folder):
        if holds_run(folder):
            raise InUse(
                f"{folder} already contains a run: choose another folder, or resume the run with "
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
    """On exit, remove the folder if it is empty.

    Unless the user `named` the folder, also remove the empty folders above it, up to the current
    folder. Hydra creates outputs/NAME/TIME before the settings are checked.
    """
    try:
        yield
    finally:
        above = [path for path in folder.absolute().parents if Path.cwd() in path.parents]
        with contextlib.suppress(OSError):  # a folder is not empty, or has already gone
            for path in (folder, *([] if named else above)):
                if path.absolute() != Path.cwd():
                    path.rmdir()
