"""The files in a run's folder that grow with its steps, and how a resumed run finds them."""

import logging
from pathlib import Path

from vit_train.files.writing import truncate

logger = logging.getLogger(__name__)


def reports(folder: Path) -> list[Path]:
    """Return the files that grow during a run.

    When it resumes they must not contain steps that are taken again.
    """
    return [*folder.glob("events.out.tfevents.*"), *folder.glob("metrics.csv")]


def truncate_reports(folder: Path, written: dict[str, int]) -> None:
    """Cut each report to its length in `written`, and remove reports not listed there."""
    for name, length in written.items():
        path = folder / Path(name).name
        if not path.is_file() or path.stat().st_size < length:
            logger.warning(f"{path} is missing or too short: the lost part cannot be recovered")
    for path in reports(folder):
        if path.name in written:
            truncate(path, min(written[path.name], path.stat().st_size))
        else:
            path.unlink()
