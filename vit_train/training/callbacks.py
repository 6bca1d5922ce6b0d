"""Callbacks: metrics.csv, figures after epochs, the batch with NaN, a full disk."""

import contextlib
import csv
import io
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vit_train.base.reading import read_text
from vit_train.base.writing import replacing, write_text
from vit_train.engine.metrics import Evaluation
from vit_train.engine.trainer import Callback, Trainer, TrainLog
from vit_train.figures.measures import all_values
from vit_train.results.summaries import CSV_BYTES

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
    """Check for the last event of a run."""
    return event == "on_stop" or (event == "on_epoch" and trainer.finished)


class MetricsCsv(Callback):
    """Adds the objective's measures in training and the results in validation, as columns.

    It continues a table that already exists, from `open` on. Rows stay in memory until `flush` has
    written them.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.text, self.written = path, "", ""

    def open(self, earlier: str = "") -> None:
        """Read the rows before the first step, or take the `earlier` ones of another run.

        Raise ValueError if they are not whole.
        """
        if self.path.exists():
            self.written = read_text(self.path, CSV_BYTES)
        self.text = self.written or earlier
        if not is_whole(self.text):
            raise ValueError(
                f"{self.path} is damaged: move it away to go on without the curve so far"
            )

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        row: dict[str, float] = {"epoch": log.epoch, "step": log.step}
        row |= {"images_seen": log.images_seen, "lr": log.lr}
        row |= {f"train_{name}": value for name, value in log.values.items()}
        row |= {f"val_{name}": value for name, value in (all_values(val) if val else {}).items()}
        row["images_per_s"] = round(log.images_per_s, 1)
        row["seconds"] = round(trainer.seconds, 1)
        rows = io.StringIO(newline="")
        # A table that another version began keeps its columns.
        columns = next(parsed(self.text), list(row))
        writer = csv.DictWriter(rows, columns, restval="nan", extrasaction="ignore")
        if not self.text:
            writer.writeheader()
        writer.writerow(row)
        self.text += rows.getvalue()

    @property
    def length(self) -> int:
        """Return the file's length in bytes once everything is written."""
        return len(self.text.encode())

    def flush(self) -> None:
        """Write everything pending; after an OSError, which this raises, it stays pending."""
        if self.text != self.written:
            write_text(self.path, self.text)
            self.written = self.text


def parsed(text: str) -> Iterator[list[str]]:
    return csv.reader(io.StringIO(text, newline=""), strict=True)


def is_whole(text: str) -> bool:
    """Check for an empty text or a complete table of numbers, including the end of its last row.

    Its columns have names of one line, and rows end as they do in the files that are written here.
    """
    try:
        rows = list(parsed(text))
        for row in rows[1:]:
            list(map(float, row))
    except (ValueError, csv.Error):  # such as a cell that is longer than csv takes
        return False
    ends = text.endswith("\n") and "\r" not in text.replace("\r\n", "\n")
    return not rows or (
        ends
        and all(name.isprintable() for name in rows[0])
        and {len(row) for row in rows} == {len(rows[0])}
    )
