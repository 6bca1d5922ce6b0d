"""Callbacks: figures after epochs, the batch with NaN, and tolerance of a full disk."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vit_train.engine.metrics import Evaluation
from vit_train.engine.trainer import Callback, Trainer, TrainLog
from vit_train.files.writing import replacing

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


# Of the time that what is shown may take.
SHARE = 0.005
# Shows results of a model, such as those of its validation, after a step.
Show = Callable[[nn.Module, Evaluation | None, int], None]


class AfterEpochs(Callback):
    """Shows results after the first and the last epoch, and after others in SHARE of the time."""

    def __init__(self, show: Show) -> None:
        self.show, self.time = show, TimeShare(SHARE)

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        if self.time.is_due or trainer.finished:
            model = trainer.eval_model
            was_training = model.training
            with self.time.spent():
                self.show(model.eval(), val, log.step)
            model.train(was_training)


class BadBatchSaver(Callback):
    """Writes nonfinite-step-N.pt: the images and targets exactly as the model received them.

    Of several processes' batch these are the first one's share.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_nonfinite(self, trainer: Trainer, step: int) -> None:
        epoch, batch = divmod(step - 1, len(trainer.train_loader))
        images, targets = next(trainer.train_loader.epoch(epoch, batch))  # the same batch again
        path = self.folder / f"nonfinite-step-{step}.pt"
        place = {"step": step, "epoch": epoch, "batch": batch}
        with replacing(path) as file:
            torch.save({"images": images.cpu(), "targets": targets.cpu(), **place}, file)
        share = "the batch" if trainer.processes.count == 1 else "this process's share of the batch"
        logger.warning(f"NaN or infinity in loss or gradient at step {step}: {share} is in {path}")


# Seconds for which nothing is tried after steps once that has failed.
PAUSE = 30.0
EVENTS = [name for name in vars(Callback) if name.startswith("on_")]


class ContinueOnDiskError(Callback):
    """Forwards every event to callbacks, in order; if the disk fails, training continues.

    Each callback is tried, whichever of the others fails. It logs the first failure, and later that
    writing works again. A failure at the end of training, after which nothing is tried again, is
    raised.
    """

    def __init__(self, callbacks: list[Callback]) -> None:
        self.callbacks = callbacks
        self.silent_until = 0.0
        self.failing = False
        for event in EVENTS:
            setattr(self, event, self._patiently(event))

    def _patiently(self, event: str) -> Any:
        def forward(*arguments: Any) -> None:
            if event == "on_step" and time.monotonic() < self.silent_until:
                return
            failures = []
            for callback in self.callbacks:
                try:
                    getattr(callback, event)(*arguments)
                except OSError as error:
                    failures.append(error)
            if failures and is_last(event, *arguments):
                raise failures[0]
            if failures:
                self.silent_until = time.monotonic() + PAUSE
                if not self.failing:
                    logger.warning(
                        f"cannot write, but training continues: {failures[0]}; until that works, "
                        "no checkpoint is saved"
                    )
                self.failing = True
            elif self.failing and event == "on_epoch":
                logger.warning("the disk is writable again")
                self.failing = False

        return forward


def is_last(event: str, trainer: Trainer, *_: object) -> bool:
    """Return whether no event follows this one."""
    return event == "on_stop" or (event == "on_epoch" and trainer.finished)
