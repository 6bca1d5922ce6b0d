"""The callback that writes a run's checkpoints."""

import math
import time
from collections.abc import Callable
from pathlib import Path

from vit_train.engine.callbacks import Callback, TrainLog
from vit_train.engine.config import BEST, LAST, CheckpointConfig
from vit_train.engine.metrics import Evaluation
from vit_train.engine.time_share import TimeShare
from vit_train.engine.trainer import Trainer
from vit_train.files.generations import save_archive
from vit_train.runs.checkpoint import Checkpoint

# Of the time that checkpoints after epochs may take.
SHARE = 0.01


class CheckpointManager(Callback):
    """Keeps the last checkpoint, and the best by validation score, in the run's folder of them.

    After an epoch they are written unless that would take more than SHARE of the time, as it may
    where an epoch takes a second; after the last epoch, always. A best epoch is then copied to main
    memory until the next writing.

    `make` makes a checkpoint of a trainer's state. `flush` is called before a checkpoint is
    written, so that the reports up to then are on the disk first. It returns the length of each
    report file. When the run resumes from the checkpoint, the reports are cut to these lengths.
    """

    def __init__(
        self,
        folder: Path,
        make: Callable[..., Checkpoint],
        config: CheckpointConfig,
        flush: Callable[[], dict[str, int]] = dict,
    ) -> None:
        self.last_path, self.best_path = folder / LAST, folder / BEST
        self.make, self.config, self.flush = make, config, flush
        self.best: dict[str, int | float] | None = None
        self.best_score: float | None = None
        self.unwritten_best: Checkpoint | bytes | None = None
        self.time = TimeShare(SHARE)
        self.saved_at = time.monotonic()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore the best epoch so far, and its score."""
        self.best, self.best_score = checkpoint.best, checkpoint.best_score

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
            before = self.best, self.best_score
            self.best, self.best_score = {"epoch": trainer.epoch, **val.values}, val.score
            try:
                checkpoint = self._checkpoint(trainer)
            except OSError:  # it cannot be kept, so that an earlier epoch is still the best
                self.best, self.best_score = before
                raise
            if not due:
                self.unwritten_best = checkpoint.copied()
        if due:
            self._save(trainer, checkpoint)

    def _is_better(self, val: Evaluation) -> bool:
        """Return whether this is the best epoch so far; of equal scores that of the least loss."""
        before = -math.inf if self.best_score is None else self.best_score
        if self.best is None or val.score != before:
            return val.score > before
        return val.loss < self.best["loss"]

    def on_stop(self, trainer: Trainer) -> None:
        self._save(trainer)

    def on_nonfinite(self, trainer: Trainer, step: int) -> None:
        self._save_best()  # the run may end here

    def _save(self, trainer: Trainer, best: Checkpoint | None = None) -> None:
        """Write the last checkpoint; it is `best` if it is the best one, too."""
        with self.time.spent():
            if best is not None:
                self.unwritten_best = archive = best.to_bytes()
            self._save_best()
            if best is None:
                archive = self._checkpoint(trainer).to_bytes()
            save_archive(self.last_path, archive, self.config.keep)
        self.saved_at = time.monotonic()

    def _save_best(self) -> None:
        """Write the best epoch, if it is not written yet; before the last, which refers to it."""
        best = self.unwritten_best
        if best is not None:
            archive = best if isinstance(best, bytes) else best.to_bytes()
            save_archive(self.best_path, archive, 0)
            self.unwritten_best = None

    def _checkpoint(self, trainer: Trainer) -> Checkpoint:
        """Return a checkpoint of the run; later steps change its tensors."""
        state, written = trainer.state(), self.flush()
        return self.make(**vars(state), written=written, best=self.best, best_score=self.best_score)
