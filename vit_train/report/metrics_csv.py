"""metrics.csv: one row an epoch, readable while the run goes on."""

import csv
import time
from collections.abc import Sequence
from pathlib import Path

from vit_train.engine.metrics import Evaluation
from vit_train.engine.trainer import Observer, Trainer, TrainLog


class MetricsCsv(Observer):
    """The columns of training are the objective's measures, those of validation its results."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.started = time.perf_counter()
        self.begun = False

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        row: dict[str, float] = {"epoch": log.epoch, "step": log.step}
        row |= {"images_seen": log.images_seen, "lr": log.lr}
        row |= {f"train_{name}": value for name, value in log.values.items()}
        row |= {f"val_{name}": value for name, value in (val.values if val else {}).items()}
        row["images_per_s"] = round(log.images_per_s, 1)
        row["seconds"] = round(time.perf_counter() - self.started, 1)
        if not self.begun:
            self._write("w", list(row))
            self.begun = True
        self._write("a", list(row.values()))

    def _write(self, mode: str, row: Sequence[object]) -> None:
        with self.path.open(mode, newline="") as file:
            csv.writer(file).writerow(row)
