"""A folder of runs stands for the newest finished run in it; a finished run can be extended."""

import logging
from pathlib import Path

from vit_train.files.reading import near_path
from vit_train.runs.builtin import PREFIX
from vit_train.runs.lock import CHECKPOINTS, CONFIG
from vit_train.runs.resume import is_finished

logger = logging.getLogger(__name__)
MOST_NAMED = 5


def run_at(path: Path) -> Path:
    """Return the newest finished run in a folder of runs; any other path as it is.

    Raise ValueError if none of the runs is finished, and for a folder of such folders.
    """
    if not path.is_dir() or (path / CONFIG).exists() or (path / CHECKPOINTS).exists():
        return path
    summaries = list(path.glob("*/summary.json"))
    if not summaries:
        require_no_runs_below(path)
        return path
    by_time = sorted(summaries, key=lambda file: file.lstat().st_mtime_ns, reverse=True)
    run = next((file.parent for file in by_time if is_finished(file.parent)), None)
    if run is None:
        raise ValueError(f"none of the runs in {path} is finished: name one of them")
    logger.info(f"taking the newest finished run: {run}")
    return run


def require_no_runs_below(path: Path) -> None:
    folders = sorted({str(file.parent.parent) for file in path.glob("*/*/summary.json")})
    if folders:
        more = ", …" if len(folders) > MOST_NAMED else ""
        raise ValueError(
            f"{path} holds folders of runs: name one, {', '.join(folders[:MOST_NAMED])}{more}"
        )


def finished_run(path: str) -> Path:
    """Return the folder of the finished run that `extend=` means, or raise ValueError."""
    if path.startswith(PREFIX):
        raise ValueError(
            f"extend={path}: a model that travels with the package has no optimizer state; "
            f"init_from={path} starts from its encoder"
        )
    if Path(path).is_file() or Path(path).name == "checkpoints":
        raise ValueError(f"extend={path}: name the run's folder, not a checkpoint")
    if not Path(path).is_dir():
        raise ValueError(f"extend={path}: there is no such folder{near_path(Path(path))}")
    folder = run_at(Path(path))
    if not is_finished(folder):
        raise ValueError(
            f"extend={path}: this run is not finished: finish it with vit-train resume={folder}"
        )
    return folder
