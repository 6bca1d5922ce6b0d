"""Output on the terminal and in train.log."""

import logging
import sys
import time
from collections.abc import Mapping
from types import TracebackType

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from vit_train.engine.metrics import Evaluation
from vit_train.engine.trainer import Callback, Trainer, TrainLog

logger = logging.getLogger(__name__)


class Terminal(Callback):
    """A table with a line per epoch and, if stderr is a terminal, a tqdm bar over its steps.

    `step` is the one from which training goes on.
    """

    def __init__(self, steps_per_epoch: int, epochs: int, step: int = 0) -> None:
        self.steps_per_epoch, self.epochs, self.first_step = steps_per_epoch, epochs, step
        self.has_header = self.has_estimate = False
        self.began = time.perf_counter()
        self.bar = tqdm(
            total=steps_per_epoch,
            disable=not sys.stderr.isatty(),
            unit="step",
            dynamic_ncols=True,
            leave=False,
            delay=1e-9,  # or it would be drawn at once, in front of the run's first lines
        )
        self.redirect = logging_redirect_tqdm()

    def __enter__(self) -> "Terminal":
        self.began = time.perf_counter()
        done, steps = divmod(self.first_step, self.steps_per_epoch)
        self.bar.n = self.bar.last_print_n = steps  # the latter, or tqdm takes them for quick ones
        self.name_epoch(done)
        self.redirect.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.bar.close()
        self.redirect.__exit__(kind, error, traceback)

    def name_epoch(self, done: int) -> None:
        self.bar.set_description(f"epoch {min(done + 1, self.epochs)}/{self.epochs}")

    def on_step(self, trainer: Trainer) -> None:
        self.bar.update()

    def on_log(self, trainer: Trainer, log: TrainLog) -> None:
        self.bar.set_postfix_str(
            f"{listed_values(log.values)}, lr {log.lr:.1e}, {log.images_per_s:.0f} img/s"
        )
        left = self.seconds_left(log)
        if not self.has_estimate and left > 60:
            logger.info(f"about {duration(left)} left, at {log.images_per_s:.0f} images/s")
        self.has_estimate = True

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        sides = {"train": log.values, **({"val": val.values} if val else {})}
        if not self.has_header:
            logger.info(header_line(sides))
        self.has_header = self.has_estimate = True
        logger.info(
            f"{log.epoch:4d}/{self.epochs:<4d}{'  '.join(map(cells, sides.values()))}"
            f"  {log.lr:.1e}  {log.images_per_s:8.0f}  {duration(self.seconds_left(log)):>6}"
        )
        self.bar.reset()
        self.name_epoch(log.epoch)

    def seconds_left(self, log: TrainLog) -> float:
        """Estimate the seconds that the remaining steps take, with all that is done between."""
        remaining = self.epochs * self.steps_per_epoch - log.step
        taken = max(1, log.step - self.first_step)
        return (time.perf_counter() - self.began) / taken * remaining


def header_line(sides: Mapping[str, dict[str, float]]) -> str:
    """Return the names of the columns of an epoch's line."""
    names = (
        f"{f'{side} loss':>10}" + (f"{'acc':>8}" if "acc" in values else "")
        for side, values in sides.items()
    )
    return f"{'epoch':<9}{'  '.join(names)}  {'lr':>7}  images/s    left"


def cells(values: dict[str, float]) -> str:
    accuracy = f"{values['acc']:8.2%}" if "acc" in values else ""
    return f"{values['loss']:10.3f}{accuracy}"


def duration(seconds: float) -> str:
    """Return a duration in the unit that suits it: "42 s", "17 min", "2.3 h"."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def listed_values(values: dict[str, float]) -> str:
    """Format the loss, and the accuracy if there is one."""
    accuracy = f" acc {values['acc']:6.2%}" if "acc" in values else ""
    return f"loss {values['loss']:.3f}{accuracy}"
