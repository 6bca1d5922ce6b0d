"""The checkpoints of a run: when they are written, and how training resumes from one."""

import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from vit_train.base.memory import is_out_of_memory
from vit_train.base.reading import Refused, flatten, read_text
from vit_train.base.text import counted
from vit_train.base.writing import save_archive, write_from
from vit_train.engine.config import BEST, LAST, CheckpointConfig
from vit_train.engine.metrics import Evaluation
from vit_train.engine.resuming import state_of
from vit_train.engine.trainer import Callback, Trainer, TrainLog
from vit_train.results.summaries import CSV_BYTES, REPEATED, read_curve, settings_of
from vit_train.runs.checkpoint import Checkpoint, Extended
from vit_train.runs.config import TrainConfig, default_settings
from vit_train.runs.paths import CHECKPOINTS, SUMMARY, finished_run
from vit_train.training.callbacks import TimeShare
from vit_train.training.setup import Setup

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Earlier:
    """The checkpoint from which a run continues: its own or, with a `folder`, that run's last."""

    state: Checkpoint
    # The runs that this one extends, the first one first.
    chain: list[Extended]
    # Of the run that is extended now.
    folder: Path | None = None

    def words(self, config: TrainConfig) -> str:
        """Describe where training begins."""
        if self.folder is None:
            return f"resuming after step {self.state.step}"
        optim, epochs = config.optim, counted(config.train.epochs, "epoch")
        return (
            f"extends {self.folder} after epoch {self.state.epoch}: the learning rate rises to "
            f"{optim.lr:g} in {optim.warmup_epochs:g} of {epochs}, then falls to {optim.min_lr:g}"
        )

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
def refusing_other_runs(earlier: Earlier | None) -> Iterator[None]:
    """Raise ValueError if the block fails because `earlier` belongs to another run.

    The checkpoint's checksum was valid, so an error in restoring its state means that the state
    does not fit.
    """
    try:
        yield
    except Refused:
        raise
    except (ValueError, RuntimeError) as error:
        if earlier is None or is_out_of_memory(error):
            raise
        argument = "extend" if earlier.folder else "resume"
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
            write_from(path, min(written[path.name], path.stat().st_size), b"")
        else:
            path.unlink()


# Of the time that checkpoints after epochs may take.
SHARE = 0.01
# Seconds after which the reports are written even within an epoch.
OFTEN = 30.0


class Reports(Protocol):
    """The reports of a run besides its checkpoints; they stay in memory until flushed."""

    def lengths(self) -> dict[str, int]:
        """Return the length in bytes that each file has once everything is written."""

    def flush(self) -> None:
        """Write everything to the disk, or raise OSError; then the next call tries it again."""


class CheckpointManager(Callback):
    """Keeps the last checkpoint, and the best by validation score, in the run's folder of them.

    After an epoch they are written unless that would take more than SHARE of the time, as it may
    where an epoch takes a second; after the last epoch, always. A best epoch is then copied to main
    memory until the next writing.

    `make` makes a checkpoint of a trainer's state. The `reports` are written, too: after an epoch,
    every OFTEN seconds, and before each checkpoint, so that none is written if what was reported up
    to then cannot be. A checkpoint has their lengths: when the run resumes from it, the reports are
    cut to these.
    """

    def __init__(
        self,
        folder: Path,
        make: Callable[..., Checkpoint],
        config: CheckpointConfig,
        reports: Reports,
    ) -> None:
        self.last_path, self.best_path = folder / LAST, folder / BEST
        self.make, self.config, self.reports = make, config, reports
        self.unwritten_best: Checkpoint | bytes | None = None
        self.time = TimeShare(SHARE)
        self.saved_at = self.flushed_at = time.monotonic()

    def on_log(self, trainer: Trainer, log: TrainLog) -> None:
        if time.monotonic() - self.flushed_at >= OFTEN:
            self._flush()

    def on_step(self, trainer: Trainer) -> None:
        steps, minutes = self.config.every_steps, self.config.every_minutes
        due = steps is not None and trainer.step % steps == 0
        late = minutes is not None and time.monotonic() - self.saved_at >= 60 * minutes
        if due or late:
            began = time.perf_counter()
            self._save(trainer)
            trainer.leave_out(began)

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        due = self.time.is_due or trainer.finished
        checkpoint = None
        if trainer.best is not None and trainer.best.epoch == trainer.epoch:
            checkpoint = self._checkpoint(trainer)
            if not due:
                self.unwritten_best = checkpoint.copied()
        if due:
            self._save(trainer, checkpoint)
        else:
            self._flush()

    def on_stop(self, trainer: Trainer) -> None:
        self._save(trainer)

    def on_nonfinite(self, trainer: Trainer, step: int) -> None:
        self._flush()  # the run may end here
        self._save_best()

    def _save(self, trainer: Trainer, best: Checkpoint | None = None) -> None:
        """Write the last checkpoint; it is `best` if it is the best one, too."""
        with self.time.spent():
            if best is not None:
                self.unwritten_best = archive = best.to_bytes()
            self._save_best()
            if best is None:
                archive = self._checkpoint(trainer).to_bytes()
            self._write(self.last_path, archive, self.config.keep)
        self.saved_at = time.monotonic()

    def _save_best(self) -> None:
        """Write the best epoch, if it is not written yet; before the last, which refers to it."""
        best = self.unwritten_best
        if best is not None:
            archive = best if isinstance(best, bytes) else best.to_bytes()
            self._write(self.best_path, archive, keep=0)
            self.unwritten_best = None

    def _write(self, path: Path, archive: bytes, keep: int) -> None:
        self._flush()
        save_archive(path, archive, keep)

    def _flush(self) -> None:
        self.flushed_at = time.monotonic()
        self.reports.flush()

    def _checkpoint(self, trainer: Trainer) -> Checkpoint:
        """Return a checkpoint of the run; later steps change its tensors."""
        state, written = state_of(trainer), self.reports.lengths()
        return self.make(**vars(state), written=written)
