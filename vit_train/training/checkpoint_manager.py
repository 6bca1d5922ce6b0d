"""The callback that writes a run's checkpoints."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from vit_train.engine.config import BEST, LAST, CheckpointConfig
from vit_train.engine.metrics import Evaluation
from vit_train.engine.trainer import Callback, Trainer, TrainLog
from vit_train.engine.trainer_state import state_of
from vit_train.files.writing import save_archive
from vit_train.runs.checkpoint import Checkpoint
from vit_train.training.callbacks import TimeShare

# Of the time that checkpoints after epochs may take.
SHARE = 0.01
# Seconds after which the reports are written even within an epoch.
OFTEN = 30.0


class Reports(Protocol):
    """What a run reports besides its checkpoints; it may be in memory until it is flushed."""

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
        self.best: dict[str, int | float] | None = None
        self.best_score: float | None = None
        self.unwritten_best: Checkpoint | bytes | None = None
        self.time = TimeShare(SHARE)
        self.saved_at = self.flushed_at = time.monotonic()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the best epoch so far, and its score."""
        self.best, self.best_score = checkpoint.best, checkpoint.best_score

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
        if val is not None and self._is_better(val):
            self.best, self.best_score = {"epoch": trainer.epoch, **val.values}, val.score
            checkpoint = self._checkpoint(trainer)
            if not due:
                self.unwritten_best = checkpoint.copied()
        if due:
            self._save(trainer, checkpoint)
        else:
            self._flush()

    def _is_better(self, val: Evaluation) -> bool:
        """Return whether this is the best epoch so far; of equal scores that of the least loss."""
        before = -math.inf if self.best_score is None else self.best_score
        if self.best is None or val.score != before:
            return val.score > before
        return val.loss < self.best["loss"]

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
        return self.make(**vars(state), written=written, best=self.best, best_score=self.best_score)
