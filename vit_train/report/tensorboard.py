"""TensorBoard: curves, pictures, the config, final metrics."""

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from torch.utils.tensorboard import SummaryWriter

from vit_train.engine.callbacks import Callback, TrainLog
from vit_train.engine.metrics import Evaluation
from vit_train.engine.trainer import Trainer
from vit_train.files.plain_values import flatten
from vit_train.report.metrics import all_values
from vit_train.viz.figures import ignore_missing_glyphs


class TensorBoard(Callback):
    """Writes event files; after an OSError, which it raises, it starts a new file."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.writer: SummaryWriter | None = SummaryWriter(self.folder)

    def _write(self, kind: str, *what: Any, **more: Any) -> None:
        if self.writer is None:
            self.writer = SummaryWriter(self.folder)
        try:
            getattr(self.writer, kind)(*what, **more)
        except OSError:
            self.writer = None  # the writer's thread has ended
            raise

    def config(self, text: str) -> None:
        # A code block by indentation, because a setting's value could end a fenced one.
        self._write("add_text", "config", textwrap.indent(text, " " * 4))

    def figure(self, tag: str, figure: Figure, step: int = 0) -> None:
        with ignore_missing_glyphs():
            self._write("add_figure", tag, figure, step)

    def picture(self, tag: str, picture: Image.Image, step: int) -> None:
        self._write("add_image", tag, np.asarray(picture), step, dataformats="HWC")

    def on_log(self, trainer: Trainer, log: TrainLog) -> None:
        counts = {"lr": log.lr, "images_per_s": log.images_per_s, "images_seen": log.images_seen}
        for tag, value in {**log.values, **counts}.items():
            self.scalar(f"train/{tag}", value, log.step)

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        if val is not None:
            self.evaluation("val", val, log.step)
        self.flush()

    def flush(self) -> None:
        """Write everything recorded so far to the file."""
        self._write("flush")

    def evaluation(self, tag: str, result: Evaluation, step: int) -> None:
        for name, value in all_values(result).items():
            self.scalar(f"{tag}/{name}", value, step)

    def scalar(self, tag: str, value: float, step: int) -> None:
        self._write("add_scalar", tag, value, step)

    def close(self, config: dict[str, Any], metrics: dict[str, float]) -> None:
        """Write the hyperparameters with the final metrics, and flush everything."""
        flat = dict(flatten(config))
        finals = {f"final/{name}": value for name, value in metrics.items()}
        self._write("add_hparams", flat, finals, run_name=".")
        self._write("close")
