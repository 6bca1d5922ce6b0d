"""A run's folder: its files, what a path means, and its only writer."""

import contextlib
import itertools
import logging
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vit_train.base.reading import near_path, read_object
from vit_train.base.writing import exclusive, generations
from vit_train.engine.config import BEST, LAST

logger = logging.getLogger(__name__)

PREFIX, SUFFIX = "builtin:", ".safetensors"
FOLDER = Path(__file__).parents[1] / "builtin"


def is_builtin(checkpoint: Path) -> bool:
    return checkpoint.parent == FOLDER


def builtin_names() -> list[str]:
    return sorted(file.stem for file in FOLDER.glob(f"*{SUFFIX}"))


def builtin_checkpoint(path: str | Path) -> Path | None:
    """Return the file that `builtin:NAME` means; None for any other path.

    Raise ValueError if there is no such model.
    """
    name = str(path).removeprefix(PREFIX)
    if name == str(path):
        return None
    if name not in builtin_names():
        known = ", ".join(PREFIX + each for each in builtin_names())
        raise ValueError(f"there is no {path}: choose from {known}")
    return FOLDER / f"{name}{SUFFIX}"


# These exist from a run's first step and first save on, and stay after the run has ended.
CONFIG, CHECKPOINTS = "config.yaml", "checkpoints"
SUMMARY = "summary.json"


@dataclass(frozen=True)
class Outcome:
    """A run's folder and best validation score, and its exit status, 128 + N after signal N.

    A run that was stopped, perhaps because its time was over, is not `finished`.
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

    A run that was killed while it saved may have only last-1.safetensors.
    """
    return next(iter(generations(run / CHECKPOINTS / LAST)), None)


def checkpoint_at(path: Path) -> Path:
    """Return the checkpoint that a path means: of a run its best one or, without a best, its last.

    Raise ValueError if the run has neither. A path that is not a folder is that of a checkpoint.
    """
    if not path.is_dir():
        return named_from_inside(path)
    best = path / CHECKPOINTS / BEST
    found = best if best.exists() else last_checkpoint(path)
    if found is None:
        raise ValueError(
            f"{path} has no {CHECKPOINTS}/{BEST} or {LAST}, and no runs: name a run's folder, a "
            "folder of runs, or a checkpoint"
        )
    return found


def run_at(path: Path) -> Path:
    """Return the newest finished run in a folder of runs; any other path as it is.

    Raise ValueError if none of the runs is finished.
    """
    summaries = list(path.glob(f"*/{SUMMARY}")) if path.is_dir() and not holds_run(path) else []
    if not summaries:
        return path
    by_time = sorted(summaries, key=lambda file: file.lstat().st_mtime_ns, reverse=True)
    run = next((file.parent for file in by_time if is_finished(file.parent)), None)
    if run is None:
        raise ValueError(f"none of the runs in {path} is finished: name one of them")
    logger.info(f"taking the newest finished run: {run}")
    return run


def finished_run(path: str) -> Path:
    """Return the folder of the finished run that `extend=` means, or raise ValueError."""
    if not Path(path).is_dir():
        raise ValueError(
            f"extend={path}: there is no such folder{near_path(Path(path))}: name the run's "
            "folder; init_from= starts from the weights of a checkpoint"
        )
    folder = run_at(Path(path))
    if not holds_run(folder):
        raise ValueError(f"extend={path}: there is no run in {folder}")
    if not is_finished(folder):
        raise ValueError(
            f"extend={path}: this run is not finished: finish it with {resume_command(folder)}"
        )
    return folder


def for_shell(path: Path) -> str:
    """Return a path as a command shows it, with quotes where a shell needs them."""
    return shlex.quote(str(path))


def resume_command(run: Path) -> str:
    """Return the command that resumes a run, given by its folder or one of its checkpoints."""
    return f"vit-train resume={for_shell(run)}"


def resumed_run(resume: str) -> tuple[Path, Path | None]:
    """Return the folder of the run that `resume=` means and, if it names one, the checkpoint.

    Raise ValueError if there is no run.
    """
    path = named_from_inside(Path(resume))
    if not path.exists():
        raise ValueError(f"resume={resume}: there is no such folder{near_path(path)}")
    named = path if path.is_file() else None
    if named and (path.parent.name != CHECKPOINTS or path.suffix != SUFFIX):
        raise ValueError(
            f"resume={resume}: a run goes on in its own folder: name it, or a checkpoint in its "
            f"{CHECKPOINTS}/; init_from={path} begins a new run with the weights of a copy"
        )
    folder = path.parent if named else path
    if folder.name == CHECKPOINTS:
        folder = folder.parent
    if not (named or last_checkpoint(folder) or (folder / CONFIG).is_file()):
        raise ValueError(
            f"resume={resume}: there is no run in {folder} to resume{unfinished_below(folder)}"
        )
    return folder, named


def unfinished_below(folder: Path) -> str:
    """Return a hint that names the unfinished runs below a folder, if there are any."""
    below = (each.parent for depth in ("*", "*/*") for each in folder.glob(f"{depth}/{CONFIG}"))
    runs = sorted(each for each in below if not is_finished(each))
    return f". Unfinished runs below it: {', '.join(map(str, runs[-5:]))}" if runs else ""


def named_from_inside(path: Path) -> Path:
    """Return a path within RUN/checkpoints, or that folder, so that it names its run."""
    inside = path.name == CHECKPOINTS or path.absolute().parent.name == CHECKPOINTS
    return path.absolute() if inside and path.parent == Path() else path


def run_folder(checkpoint: Path) -> Path:
    """Return the folder of a checkpoint's run or, if the file was copied elsewhere, its folder.

    A model that travels with the package has a folder of its own below outputs/.
    """
    if is_builtin(checkpoint):
        return Path("outputs", f"builtin-{checkpoint.stem}")
    parent = checkpoint.parent
    return parent.parent if parent.name == CHECKPOINTS else parent


def summary_file(checkpoint: Path) -> Path:
    """Return the summary of a checkpoint's run, which need not be there."""
    if is_builtin(checkpoint):
        return checkpoint.with_suffix(".json")
    return run_folder(checkpoint) / SUMMARY


def calibration_file(checkpoint: Path) -> Path:
    """Return the file in which vit-eval notes the temperatures of a run's checkpoints."""
    return run_folder(checkpoint) / "calibration.json"


LOCK = ".lock"
# The files of a run before its first step.
BEGUN = (LOCK, "train.log")


class InUse(ValueError):
    """The folder belongs to another run, or another process is using it."""


@contextlib.contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
    """Hold the folder within the block; raise InUse if another process holds it."""
    with contextlib.ExitStack() as held:
        try:
            held.enter_context(exclusive(folder / LOCK))
        except BlockingIOError as taken:
            raise InUse(f"another process is training in {folder}: end it first") from taken
        yield


@contextlib.contextmanager
def new_run(folder: Path, named: bool) -> Iterator[Path]:
    """Hold a folder for a new run; raise InUse if it contains a run or another process holds it.

    Unless the user `named` the folder, a number is added to its name instead, -2 for the second. A
    run that ends before it has begun leaves nothing behind, nor empty folders above its own.
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
    """Hold the folder; on exit, remove the run's files written meanwhile, unless it has begun.

    Raise InUse if it already contains a run or another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.iterdir())
    with removed_if_empty(folder, named), sole_writer(folder):
        taken = holds_run(folder)
        try:
            if taken:
                raise InUse(
                    f"{folder} already holds a run: choose another folder, or resume it with "
                    f"{resume_command(folder)}"
                )
            yield
        finally:
            if taken or not holds_run(folder):
                for path in {folder / name for name in BEGUN} - before:
                    path.unlink(missing_ok=True)


@contextlib.contextmanager
def removed_if_empty(folder: Path, named: bool) -> Iterator[None]:
    """Remove the folder at the end if it is empty, and on the disk that it was on.

    Unless the user `named` it, so are those above it, up to the current one: Hydra creates
    outputs/NAME/TIME before the command's settings are checked.
    """
    disk = folder.stat().st_dev if folder.exists() else None
    try:
        yield
    finally:
        here = Path.cwd()
        above = [path for path in folder.absolute().parents if here in path.parents]
        with contextlib.suppress(OSError):  # one is not empty, or no longer there
            if disk in (None, folder.stat().st_dev):  # else a disk was mounted there
                for path in (folder, *([] if named else above)):
                    path.rmdir()
