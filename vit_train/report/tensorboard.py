"""TensorBoard: curves, pictures, the config, final metrics."""

import textwrap
from collections.abc import Mapping, Sequence
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

HOW_TO_READ = """\
- **Custom scalars** has training and validation of each measure in one chart; **Scalars** has
  every curve by itself. Steps are optimizer steps; `train/images_seen` tells the images.
- Training is measured on augmented images while the weights change, validation on whole images
  after each epoch.
- **Images**: augmented training images, what the model makes of validation images after epochs,
  and the figures of the test.
- **Text**: the test results (`test`), and every setting (`config`).
- **HParams** compares the runs below one folder by their settings and final results.
"""


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

    def begin(self, config: str, measures: Sequence[str]) -> None:
        """Write what is known before the first step; `measures` are those of the objective."""
        self._write("add_text", "how to read this page", HOW_TO_READ)
        # A code block by indentation, because a setting's value could end a fenced one.
        self._write("add_text", "config", textwrap.indent(config, " " * 4))
        both = {
            name: {"training and validation": ["Multiline", [f"train/{name}", f"val/{name}"]]}
            for name in measures
        }
        self._write("add_custom_scalars", both)

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
        if log.step < trainer.loop.log_every:  # the beginning, or all of a very short run
            self.on_log(trainer, log)
        if val is not None:
            self.evaluation("val", val, log.step)
        self.flush()

    def flush(self) -> None:
        """Write everything recorded so far to the file."""
        self._write("flush")

    def results(self, results: Mapping[str, Evaluation], step: int) -> None:
        """Write the test results, by weights, as a table: as curves they would be single dots."""
        names = list(dict.fromkeys(name for each in results.values() for name in all_values(each)))
        rows = [["test images", *names], ["---"] * (1 + len(names))]
        for weights, result in results.items():
            values = all_values(result)
            rows.append([f"{weights} weights", *(f"{values[name]:.4f}" for name in names)])
        self._write("add_text", "test", "\n".join(f"| {' | '.join(row)} |" for row in rows), step)

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
