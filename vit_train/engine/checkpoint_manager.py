"""The callback that writes a run's checkpoints."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from vit_train.engine.callbacks import Callback, TrainLog
from vit_train.engine.checkpoint import rng_states, sealed
from vit_train.engine.config import BEST, LAST, CheckpointConfig
from vit_train.engine.metrics import Evaluation
from vit_train.engine.time_share import TimeShare
from vit_train.engine.trainer import Trainer
from vit_train.files.generations import save_archive

Content = dict[str, Any]
# Of the time that checkpoints after epochs may take.
SHARE = 0.01


class CheckpointManager(Callback):
    """Keeps `last.pt`, and `best.pt` by validation score, in the run's checkpoints/ folder.

    After an epoch they are written unless that would take more than SHARE of the time, as it may
    where an epoch takes a second; after the last epoch, always. A best epoch is then copied to main
    memory until the next writing.

    `about` says what the weights mean: config, classes, normalization, versions. `flush` is called
    before a checkpoint is written, so that the reports up to then are on the disk first. It returns
    the length of each report file. When the run resumes from the checkpoint, the reports are cut
    to these lengths.
    """

    def __init__(
        self,
        folder: Path,
        about: dict[str, Any],
        config: CheckpointConfig,
        flush: Callable[[], dict[str, int]] = dict,
    ) -> None:
        self.last_path, self.best_path = folder / LAST, folder / BEST
        self.about, self.config, self.flush = about, config, flush
        self.best: dict[str, float] | None = None
        self.best_score = -math.inf
        self.unwritten_best: Content | bytes | None = None
        self.time = TimeShare(SHARE)
        self.saved_at = time.monotonic()

    def restore(self, content: dict[str, Any]) -> None:
        """Restore the best epoch so far, and its score, from a checkpoint's content."""
        best, self.best_score = content["best"], float(content["best_score"])
        if best is not None:
            self.best = {name: float(value) for name, value in best.items()}
            self.best["epoch"] = int(best["epoch"])

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
        content = None
        if val is not None and self._is_better(val):
            before = self.best, self.best_score
            self.best, self.best_score = {"epoch": trainer.epoch, **val.values}, val.score
            try:
                content = self._content(trainer)
            except OSError:  # it cannot be kept, so that an earlier epoch is still the best
                self.best, self.best_score = before
                raise
            if not due:
                self.unwritten_best = copied(content)
        if due:
            self._save(trainer, content)

    def _is_better(self, val: Evaluation) -> bool:
        """Return whether this is the best epoch so far; of equal scores that of the least loss."""
        if self.best is None or val.score != self.best_score:
            return val.score > self.best_score
        return val.loss < self.best["loss"]

    def on_stop(self, trainer: Trainer) -> None:
        self._save(trainer)

    def on_nonfinite(self, trainer: Trainer, step: int) -> None:
        self._save_best()  # the run may end here

    def _save(self, trainer: Trainer, best: Content | None = None) -> None:
        """Write the last state; `best` is its content if it is the best one, too."""
        with self.time.spent():
            if best is not None:
                self.unwritten_best = archive = sealed(best)
            self._save_best()
            if best is None:
                archive = sealed(self._content(trainer))
            save_archive(self.last_path, archive, self.config.keep)
        self.saved_at = time.monotonic()

    def _save_best(self) -> None:
        """Write the best epoch, if it is not written yet; before the last, which refers to it."""
        best = self.unwritten_best
        if best is not None:
            save_archive(self.best_path, best if isinstance(best, bytes) else sealed(best), 0)
            self.unwritten_best = None

    def _content(self, trainer: Trainer) -> Content:
        """Return the run's state as the content of a checkpoint; later steps change its tensors."""
        content = {**self.about, **trainer.state_dict(), "rng": rng_states()}
        content["written"] = self.flush()
        return content | {"best": self.best, "best_score": self.best_score}


def copied(content: Any) -> Any:
    """Return the content with copies of its tensors in main memory."""
    if isinstance(content, Tensor):
        return content.detach().to("cpu", copy=True)
    if isinstance(content, dict):
        return {key: copied(value) for key, value in content.items()}
    return list(map(copied, content)) if isinstance(content, list) else content
