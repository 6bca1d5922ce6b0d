"""A run's checkpoints: when they are written, what a failing disk does, how training goes on."""

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from vit_train.base.memory import is_out_of_memory
from vit_train.base.reading import flatten, read_text
from vit_train.base.text import counted
from vit_train.base.writing import replacing, save_archive
from vit_train.engine import resuming
from vit_train.engine.config import BEST, LAST, CheckpointConfig
from vit_train.engine.metrics import Evaluation
from vit_train.engine.trainer import Callback, Trainer, TrainLog
from vit_train.results.summaries import CSV_BYTES, REPEATED, settings_of
from vit_train.runs.checkpoint import Checkpoint, Extended
from vit_train.runs.config import TrainConfig, default_settings
from vit_train.runs.paths import CHECKPOINTS, finished_run
from vit_train.training.setup import Setup

logger = logging.getLogger(__name__)


class TimeShare:
    """Says when recurring work is due, so that it takes at most `share` of the time.

    It is due at once; after that it waits 1/share times as long as it last took: with 0.01, a
    hundred times as long.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.due_at = float("-inf")

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self.due_at

    @contextlib.contextmanager
    def spent(self) -> Iterator[None]:
        """Time the work within the block."""
        began = time.monotonic()
        yield
        ended = time.monotonic()
        self.due_at = ended + (ended - began) / self.share


# Of the time that checkpoints after epochs may take.
SHARE = 0.01
# Seconds after which the reports are written even within an epoch.
OFTEN = 30.0


# Seconds for which nothing is tried after steps once that has failed.
PAUSE = 30.0


class CheckpointManager(Callback):
    """Keeps the last checkpoint, and the best by validation score, in the run's folder of them.

    After an epoch they are written unless that would take more than SHARE of the time, as it may
    where an epoch takes a second; after the last epoch, always. A best epoch is then copied to main
    memory until the next writing.

    `make` makes a checkpoint of a trainer, whose later steps change its tensors. `flush` writes the
    reports, or raises OSError and tries again when it is next called: after an epoch, every OFTEN
    seconds, and before each checkpoint, so that none is written if what was reported up to then
    cannot be.
    """

    def __init__(
        self,
        folder: Path,
        config: CheckpointConfig,
        make: Callable[[Trainer], Checkpoint],
        flush: Callable[[], None],
    ) -> None:
        self.last_path, self.best_path = folder / LAST, folder / BEST
        self.config, self.make, self.flush = config, make, flush
        self.unwritten_best: Checkpoint | bytes | None = None
        self.time = TimeShare(SHARE)
        self.saved_at = self.flushed_at = time.monotonic()
        self.failing, self.silent_until = False, 0.0

    @contextlib.contextmanager
    def tolerant(self, is_last: bool = False, is_epoch: bool = False) -> Iterator[None]:
        """With checkpoint.on_error=continue, let training go on if the block cannot write.

        The first failure is logged, and after an epoch that writing works again. A failure at the
        end of training, after which nothing is tried again, is raised.
        """
        try:
            yield
        except OSError as error:
            if is_last or self.config.on_error != "continue":
                raise
            if not self.failing:
                logger.warning(
                    f"cannot write, but training continues: {error}; until that works, no "
                    "checkpoint is saved"
                )
            self.failing, self.silent_until = True, time.monotonic() + PAUSE
        else:
            if self.failing and is_epoch:
                logger.warning("the disk is writable again")
                self.failing = False

    def on_log(self, trainer: Trainer, log: TrainLog) -> None:
        if time.monotonic() - self.flushed_at >= OFTEN:
            with self.tolerant():
                self._flush()

    def on_step(self, trainer: Trainer) -> None:
        now, steps, minutes = time.monotonic(), self.config.every_steps, self.config.every_minutes
        due = steps is not None and trainer.step % steps == 0
        late = minutes is not None and now - self.saved_at >= 60 * minutes
        if (due or late) and now >= self.silent_until:
            began = time.perf_counter()
            with self.tolerant():
                self._save(trainer)
            trainer.leave_out(began)

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        due = self.time.is_due or trainer.finished
        checkpoint = None
        if trainer.best is not None and trainer.best.epoch == trainer.epoch:
            checkpoint = self.make(trainer)
            if not due:
                self.unwritten_best = checkpoint.copied()
        with self.tolerant(is_last=trainer.finished, is_epoch=True):
            if due:
                self._save(trainer, checkpoint)
            else:
                self._flush()

    def on_stop(self, trainer: Trainer) -> None:
        self._save(trainer)

    def on_nonfinite(self, trainer: Trainer, step: int) -> None:
        """Write what waits, because the run may end here, and the batch as the model received it.

        Of several processes' batch this is the first one's share.
        """
        epoch, batch = divmod(step - 1, len(trainer.train_loader))
        path = self.last_path.parent.with_name(f"nonfinite-step-{step}.pt")
        with self.tolerant():
            self._flush()
            self._save_best()
            images, targets = next(trainer.train_loader.epoch(epoch, batch))  # the same batch again
            place = {"step": step, "epoch": epoch, "batch": batch}
            with replacing(path) as file:
                torch.save({"images": images.cpu(), "targets": targets.cpu(), **place}, file)
            logger.warning(f"NaN or infinity in loss or gradient at step {step}: batch in {path}")

    def _save(self, trainer: Trainer, best: Checkpoint | None = None) -> None:
        """Write the last checkpoint; it is `best` if it is the best one, too."""
        with self.time.spent():
            if best is not None:
                self.unwritten_best = archive = best.to_bytes()
            self._save_best()
            if best is None:
                archive = self.make(trainer).to_bytes()
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
        self.flush()


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

    def require_same(self, setup: Setup) -> None:
        """Raise ValueError if this is a run of other images, or of another teacher."""
        now, then = setup.teacher, self.state.teacher
        if self.state.fingerprint != setup.data.fingerprint:
            raise self.refusal("the images on disk are not those it was trained on")
        if then.get("fingerprint") != now.get("fingerprint"):
            teacher = now.get("checkpoint", "none")
            raise self.refusal(f"its teacher was not this one, as it is now: {teacher}")

    def restore(self, trainer: Trainer) -> None:
        """Continue with this run's state; raise ValueError if it does not fit.

        The checkpoint's checksum was valid: then it belongs to another run.
        """
        try:
            if self.folder:
                resuming.extend(trainer, self.state)
            else:
                resuming.restore(trainer, self.state)
        except (ValueError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            raise self.refusal(str(error)) from error

    def refusal(self, reason: str) -> ValueError:
        argument = "extend" if self.folder else "resume"
        return ValueError(f"{argument}: this checkpoint is not from this run: {reason}")

    def curve(self) -> str:
        """Return the metrics.csv of the extended run, if it has one; else ""."""
        if self.folder and (path := self.folder / "metrics.csv").is_file():
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
