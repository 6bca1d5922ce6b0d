"""The checkpoint from which a run resumes, or the run that it extends."""

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vit_train.engine.config import LAST
from vit_train.files.memory import is_out_of_memory
from vit_train.files.reading import Refused, flatten, read_text
from vit_train.files.writing import truncate
from vit_train.results.summaries import CSV_BYTES, REPEATED, read_curve, settings_of
from vit_train.runs.checkpoint import Checkpoint, Extended
from vit_train.runs.config import TrainConfig, default_settings
from vit_train.runs.paths import CHECKPOINTS, SUMMARY, finished_run
from vit_train.training.setup import Setup

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Earlier:
    """What a run goes on from: its own checkpoint or, with a `folder`, the last one of that run."""

    state: Checkpoint
    # The runs that this one extends, the first one first.
    chain: list[Extended]
    # Of the run that is extended now.
    folder: Path | None = None

    @property
    def argument(self) -> str:
        return "extend" if self.folder else "resume"

    def curve(self) -> str:
        """Return the metrics.csv of the extended run, if it has one; else ""."""
        if self.folder and (path := self.folder / "metrics.csv").is_file():
            read_curve(path.with_name(SUMMARY))  # raises ValueError if it is damaged
            return read_text(path, CSV_BYTES)
        return ""


def read_earlier(config: TrainConfig, checkpoint: Path | None) -> Earlier | None:
    """Read what a run goes on from; None if it begins at its beginning.

    Raise ValueError if the run that it extends is not finished, or a checkpoint is missing or
    damaged.
    """
    folder = None
    if checkpoint is None:
        if config.extend is None:
            return None
        folder = finished_run(config.extend)
        checkpoint = folder / CHECKPOINTS / LAST
    state = Checkpoint.load(checkpoint)
    if folder is None:
        return Earlier(state, state.extends)
    own = Extended(
        run=str(folder),
        epochs=state.epoch,
        steps=state.step,
        images_seen=state.images_seen,
        seconds=state.seconds,
        fingerprint=state.checksum,
        recipe=recipe(state.config, state.extends),
    )
    return Earlier(state, [*state.extends, own], folder)


def recipe(config: dict[str, Any], chain: list[Extended]) -> str:
    """Return a short name of the settings that this run shares with its repetitions.

    What is at its default is left out, so that a later version with more settings agrees.
    """
    settings = settings_of({"config": config, "extends": list(map(asdict, chain))})
    defaults = dict(flatten(default_settings(config)))
    shared = sorted(
        (key, str(value))
        for key, value in settings.items()
        if key not in REPEATED and (key.endswith("name") or value != defaults.get(key))
    )
    return hashlib.sha256(repr(shared).encode()).hexdigest()[:8]


def require_same_run(setup: Setup, state: Checkpoint) -> None:
    """Raise ValueError if a checkpoint's `state` is of other images, or of another teacher."""
    if state.fingerprint != setup.data.fingerprint:
        raise ValueError("the images on disk are not those it was trained on")
    if state.teacher.get("fingerprint") != setup.teacher.get("fingerprint"):
        now = setup.teacher.get("checkpoint", "none")
        raise ValueError(f"its teacher was not this one, as it is now: {now}")


@contextmanager
def refusing_other_runs(argument: str) -> Iterator[None]:
    """Raise ValueError if the block fails because the checkpoint belongs to another run.

    The checkpoint's checksum was valid, so an error in restoring its state means that the state
    does not fit. `argument`, resume or extend, is named in the message.
    """
    try:
        yield
    except Refused:
        raise
    except (ValueError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise ValueError(f"{argument}: this checkpoint is not from this run: {error}") from error


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
