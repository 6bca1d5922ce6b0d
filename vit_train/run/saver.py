"""A run's checkpoints: when they are written, and how disk errors are handled."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from vit_train.base.log import logger
from vit_train.base.writing import replacing, save_archive
from vit_train.config.training import CheckpointConfig
from vit_train.loop.metrics import Evaluation
from vit_train.loop.trainer import Callback, Trainer, TrainLog
from vit_train.trained.checkpoint import Checkpoint
from vit_train.trained.folder import BEST, LAST


class TimeShare:
    """Limits recurring work, such as saving, to the fraction `share` of the running time.

    The work is due at first, and again once 1/share times its last duration has passed. With
    share=0.01, work that takes 1 second is due again 100 seconds later.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.due_at = float("-inf")

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self.due_at

    @contextlib.contextmanager
    def spent(self) -> Iterator[None]:
        """Measure how long the work in the block takes, and set when it is due again."""
        began = time.monotonic()
        yield
        ended = time.monotonic()
        self.due_at = ended + (ended - began) / self.share


# The largest share of the time for checkpoints after epochs, and for reports within epochs.
SHARE = 0.01
# Seconds between a failure and the next checkpoint after a step.
PAUSE = 30.0


class CheckpointManager(Callback):
    """Writes the last checkpoint and the one with the best validation score into one folder.

    Both are written after the last epoch, and after earlier epochs as often as SHARE of the time
    allows. If epochs are short, not every epoch is written. The best checkpoint stays in main
    memory until it is written. `config` may ask for more checkpoints.

    `make` returns a checkpoint that shares its tensors with the trainer. `flush` writes the
    reports; if it raises OSError, the next call tries again. `flush` is called before each
    checkpoint, so that the reports on disk always reach the checkpoint's step. Between checkpoints,
    `flush` is called as often as SHARE of the time allows.
    `saved` is called after each checkpoint.
    """

    def __init__(
        self,
        folder: Path,
        config: CheckpointConfig,
        make: Callable[[Trainer], Checkpoint],
        flush: Callable[[], None],
        saved: Callable[[], None],
    ) -> None:
        self.last_path = folder / LAST
        self.best_path = folder / BEST
        self.config = config
        self.make = make
        self.flush = flush
        self.saved = saved
        self.unwritten_best: Checkpoint | None = None
        self.saving = TimeShare(SHARE)
        self.reporting = TimeShare(SHARE)
        self.saved_at = time.monotonic()
        self.retry_at = 0.0  # 0 unless writing has failed since the last epoch that was saved

    @contextlib.contextmanager
    def tolerant(self, is_last: bool = False, is_epoch: bool = False) -> Iterator[None]:
        """With checkpoint.on_error=continue, suppress OSError in the block.

        Log the first error, and the first epoch that is saved after an error. `is_epoch` is True if
        the block saves an epoch. `is_last` is True after the last epoch: an error is then raised,
        because no later call tries again.
        """
        try:
            yield
        except OSError as error:
            if is_last or self.config.on_error != "continue":
                raise
            if not self.retry_at:
                logger.warning(
                    f"cannot write: {error}. Training continues, but no checkpoint is saved "
                    "until writing works again"
                )
            self.retry_at = time.monotonic() + PAUSE
        else:
            if self.retry_at and is_epoch:
                logger.warning("the disk is writable again")
                self.retry_at = 0.0

    def on_log(self, trainer: Trainer, log: TrainLog) -> None:
        if self.reporting.is_due:
            with self.tolerant(), self.reporting.spent():
                self.flush()

    def on_step(self, trainer: Trainer) -> None:
        now = time.monotonic()
        steps = self.config.every_steps
        minutes = self.config.every_minutes
        due = steps is not None and trainer.step % steps == 0
        late = minutes is not None and now - self.saved_at >= 60 * minutes
        if (due or late) and now >= self.retry_at:
            with trainer.paused(), self.tolerant():
                self._save(trainer)

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        if trainer.best is not None and trainer.best.epoch == trainer.epoch:
            self.unwritten_best = self.make(trainer).copied()
        if self.config.keep_every and log.epoch % self.config.keep_every == 0:
            with self.tolerant():
                self._save_best()
                self._write(self.last_path.with_stem(f"epoch-{log.epoch}"), self.make(trainer))
        if self.saving.is_due or trainer.finished:
            with self.tolerant(is_last=trainer.finished, is_epoch=True):
                self._save(trainer)
        else:
            self.on_log(trainer, log)  # flushes the reports if that is due

    def on_stop(self, trainer: Trainer) -> None:
        self._save(trainer)

    def on_nonfinite(self, trainer: Trainer, step: int) -> None:
        """Save the batch that produced the non-finite value.

        Also save the best checkpoint, because the run may end here. With several processes, save
        only the main process's share of the batch.
        """
        epoch, batch = divmod(step - 1, len(trainer.train_loader))
        path = self.last_path.parent.with_name(f"nonfinite-step-{step}.pt")
        with self.tolerant():
            self.flush()
            self._save_best()
            images, targets = next(trainer.train_loader.epoch(epoch, batch))  # the same batch again
            saved = {
                "images": images.cpu(),
                "targets": targets.cpu(),
                "step": step,
                "epoch": epoch,
                "batch": batch,
            }
            with replacing(path) as file:
                torch.save(saved, file)
            logger.warning(
                f"NaN or infinity in loss or gradient at step {step}: the batch is saved in {path}"
            )

    def _save(self, trainer: Trainer) -> None:
        with self.saving.spent():
            self._save_best()
            self._write(self.last_path, self.make(trainer), self.config.keep)
        self.saved_at = time.monotonic()
        self.saved()

    def _save_best(self) -> None:
        """Write the best checkpoint if it is still in memory.

        Other checkpoints refer to the best epoch, so write the best checkpoint first.
        """
        if self.unwritten_best is not None:
            self._write(self.best_path, self.unwritten_best)
            self.unwritten_best = None

    def _write(self, path: Path, checkpoint: Checkpoint, keep: int | None = None) -> None:
        self.flush()
        save_archive(path, checkpoint.to_bytes(), keep)
