"""The reports that grow during a run: metrics.csv, and the curves of TensorBoard."""

import csv
import io
import logging
import os
import re
import socket
import textwrap
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
from tensorboard.summary.writer.record_writer import RecordWriter
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.utils.tensorboard.summary import hparams, scalar, text

from vit_train.base.reading import flatten, read_text
from vit_train.base.text import printable
from vit_train.base.writing import write_from, write_text
from vit_train.engine.metrics import Evaluation
from vit_train.engine.trainer import Callback, Trainer, TrainLog
from vit_train.figures.charts import Figure, ignore_missing_glyphs
from vit_train.figures.measures import all_values
from vit_train.results.summaries import CSV_BYTES

logger = logging.getLogger(__name__)


def reports(folder: Path) -> list[Path]:
    """Return the files that grow during a run.

    When it resumes they must not contain steps that are taken again.
    """
    return [*folder.glob("events.out.tfevents.*"), *folder.glob("metrics.csv")]


def truncate_reports(folder: Path, written: dict[str, int]) -> None:
    """Cut each report to its length in `written`, and remove reports not listed there."""
    for name, length in written.items():
        path = folder / Path(name).name
        if not path.is_file() or path.stat().st_size < length:
            logger.warning(f"{path} is missing or too short: the lost part cannot be recovered")
    for path in reports(folder):
        if path.name in written:
            write_from(path, min(written[path.name], path.stat().st_size), b"")
        else:
            path.unlink()


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
        if self.text and not is_complete(self.text):
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


def is_complete(text: str) -> bool:
    """Check for a complete table of numbers, including the end of its last row.

    Its columns have names of one line, and rows end as they do in the files that are written here.
    """
    try:
        header, *rows = parsed(text)
        numbers = [list(map(float, row)) for row in rows]
    except (ValueError, csv.Error):  # such as a cell that is longer than csv takes
        return False
    ends = text.endswith("\n") and "\r" not in text.replace("\r\n", "\n")
    return ends and "".join(header).isprintable() and {*map(len, numbers)} <= {len(header)}


def norms_by_layer(named: Iterable[tuple[str, nn.Parameter]]) -> dict[str, tuple[float, float]]:
    """Return the Euclidean norms of the weights and of the gradient of each layer.

    A layer is a part of the model or, if the part is a list of them, one block: "blocks.3". This
    waits for the device once.
    """
    layers: dict[str, tuple[list[Tensor], list[Tensor]]] = {}
    for name, parameter in named:
        if parameter.grad is not None:
            layer = re.match(r"[^.]+(\.\d+)?", name)
            assert layer is not None
            weights, gradients = layers.setdefault(layer[0], ([], []))
            weights.append(parameter)
            gradients.append(parameter.grad)
    norms = [get_total_norm(tensors) for pair in layers.values() for tensors in pair]
    values = iter(torch.stack(norms).tolist() if norms else [])
    return {layer: (next(values), next(values)) for layer in layers}


# TensorBoard sorts groups of curves by name and opens the first two. So each measure that training
# and validation share is a group, `acc/train` beside `acc/val`, and the norms come last.
GRADIENT, WEIGHT = "weight gradient norm", "weight norm"


class TensorBoard(Callback):
    """Adds what happens to a new file of events, which stay in memory until `flush`.

    The file is made by the first `flush`; its folder is not.
    """

    def __init__(self, folder: Path) -> None:
        now = f"{time.time():017.6f}"  # by their names files are in the order of their beginning
        self.path = folder / f"events.out.tfevents.{now}.{socket.gethostname()}.{os.getpid()}"
        self.written, self.unwritten = 0, bytearray()
        self.add(Event(file_version="brain.Event:2"))

    @property
    def length(self) -> int:
        """Return the file's length in bytes once everything is written."""
        return self.written + len(self.unwritten)

    def add(self, event: Event) -> None:
        event.wall_time = time.time()
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        self.unwritten += record.getvalue()

    def flush(self) -> None:
        """Write everything pending; after an OSError, which this raises, it stays pending."""
        if self.unwritten:
            write_from(self.path, self.written, self.unwritten)
            self.written, self.unwritten = self.length, bytearray()

    def begin(self, config: str) -> None:
        """Add the settings."""
        # A code block by indentation, because a setting's value could end a fenced one.
        block = textwrap.indent(printable(config, keep="\n"), " " * 4)
        self.add(Event(summary=text("config", block)))

    def figure(self, tag: str, figure: Figure, step: int = 0) -> bytes:
        """Add a figure, and return it as PNG."""
        png = io.BytesIO()
        with ignore_missing_glyphs():
            figure.savefig(png, format="png")
        width, height = Image.open(png).size
        image = Summary.Image(width=width, height=height, encoded_image_string=png.getvalue())
        self.add(Event(summary=Summary(value=[Summary.Value(tag=tag, image=image)]), step=step))
        return png.getvalue()

    def on_log(self, trainer: Trainer, log: TrainLog) -> None:
        for name, value in log.values.items():
            self.scalar(f"{name}/train", value, log.step)
        counts = {"lr": log.lr, "images_per_s": log.images_per_s, "images_seen": log.images_seen}
        for name, value in counts.items():
            self.scalar(f"train/{name}", value, log.step)
        for layer, (weight, gradient) in norms_by_layer(trainer.model.named_parameters()).items():
            self.scalar(f"{WEIGHT}/{layer}", weight, log.step)
            self.scalar(f"{GRADIENT}/{layer}", gradient, log.step)

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        if log.step < trainer.loop.log_every:  # the beginning, or all of a very short run
            self.on_log(trainer, log)
        if val is not None:
            for name, value in all_values(val).items():
                tag = f"{name}/val" if name in log.values else f"val/{name}"
                self.scalar(tag, value, log.step)

    def scalar(self, tag: str, value: float, step: int) -> None:
        self.add(Event(summary=scalar(tag, value), step=step))

    def close(
        self, config: dict[str, Any], metrics: dict[str, float], chosen: Collection[str] = ()
    ) -> None:
        """Add the hyperparameters with the final metrics, by tag.

        TensorBoard finds metrics only among the curves, where these are single dots. It shows
        first, and by default, the settings that it is told to differ between runs: those `chosen`.
        """
        # A path need not be UTF-8, which TensorBoard's texts must be.
        settings = {
            key: printable(value) if isinstance(value, str) else value
            for key, value in flatten(config)
        }
        experiment, *session = hparams(settings, metrics)
        plugin = experiment.value[0].metadata.plugin_data
        content = HParamsPluginData.FromString(plugin.content)
        for info in content.experiment.hparam_infos:
            info.differs = info.name in chosen
        plugin.content = content.SerializeToString()
        for summary in (experiment, *session):
            self.add(Event(summary=summary))
        for name, value in metrics.items():
            self.scalar(name, value, 0)
