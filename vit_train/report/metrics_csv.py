"""metrics.csv: one row an epoch, readable while the run goes on."""

import csv
import time
from pathlib import Path

from vit_train.engine.metrics import Evaluation
from vit_train.engine.trainer import Observer, Trainer, TrainLog

COLUMNS = ["epoch", "step", "images_seen", "lr", "train_loss", "train_acc"]
COLUMNS += ["val_loss", "val_acc", "val_top5", "images_per_s", "seconds"]


class MetricsCsv(Observer):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.started = time.perf_counter()
        with path.open("w", newline="") as file:
            csv.writer(file).writerow(COLUMNS)

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        validation = ["", "", ""] if val is None else [val.loss, val.acc, val.top5]
        row = [log.epoch, log.step, log.images_seen, log.lr, log.loss, log.acc, *validation]
        seconds = time.perf_counter() - self.started
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerow([*row, round(log.images_per_s, 1), round(seconds, 1)])
