"""metrics.csv: one row per epoch, readable during the run."""

import csv
import io
from pathlib import Path

from vit_train.engine.callbacks import Callback, TrainLog
from vit_train.engine.metrics import Evaluation
from vit_train.engine.trainer import Trainer
from vit_train.files.reading import read_text
from vit_train.files.writing import write_text
from vit_train.report.metrics import all_values

# Enough for a hundred thousand epochs.
CSV_BYTES = 30_000_000


class MetricsCsv(Callback):
    """Writes the objective's measures in training and the results in validation, as columns.

    It continues a table that already exists, from `open` on.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.text = path, ""

    def open(self) -> None:
        """Read the rows before the first step; raise ValueError if they are not whole."""
        self.text = read_text(self.path, CSV_BYTES) if self.path.exists() else ""
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
        columns = next(csv.reader(io.StringIO(self.text)), list(row))
        writer = csv.DictWriter(rows, columns, restval="nan", extrasaction="ignore")
        if not self.text:
            writer.writeheader()
        writer.writerow(row)
        self.text += rows.getvalue()  # kept for the next time if the disk fails
        write_text(self.path, self.text)


def is_whole(text: str) -> bool:
    """Return whether this is a table of numbers, or nothing, with the end of its last row."""
    rows = text.splitlines()
    try:
        for row in rows[1:]:
            list(map(float, row.split(",")))
    except ValueError:
        return False
    return not rows or (text.endswith("\n") and len({row.count(",") for row in rows}) == 1)
