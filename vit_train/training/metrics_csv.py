"""metrics.csv: one row per epoch, readable during the run."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from vit_train.engine.metrics import Evaluation
from vit_train.engine.trainer import Callback, Trainer, TrainLog
from vit_train.figures.measures import all_values
from vit_train.files.reading import read_text
from vit_train.files.writing import write_text
from vit_train.results.summaries import CSV_BYTES


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
        """Write what is not written; after an OSError, which this raises, everything still is."""
        if self.text != self.written:
            write_text(self.path, self.text)
            self.written = self.text


def parsed(text: str) -> Iterator[list[str]]:
    return csv.reader(io.StringIO(text, newline=""), strict=True)


def is_whole(text: str) -> bool:
    """Return whether this is a table of numbers, or nothing, with the end of its last row.

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
