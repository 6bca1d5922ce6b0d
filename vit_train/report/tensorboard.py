"""TensorBoard: curves, the augmented training images, the config, final metrics."""

import json
import warnings
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from vit_train.engine.metrics import Evaluation
from vit_train.engine.trainer import Observer, Trainer, TrainLog
from vit_train.report.figures import image_grid


class TensorBoard(Observer):
    def __init__(self, folder: Path) -> None:
        self.writer = SummaryWriter(str(folder))

    def config(self, text: str) -> None:
        self.writer.add_text("config", f"```yaml\n{text}\n```")

    def images(self, images: Tensor, labels: list[str]) -> None:
        """The first batch as the model sees it: uint8 (N,C,S,S) and class names."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")  # a letter the font lacks becomes a box
            self.writer.add_figure("data/train_augmented", image_grid(images, labels))

    def on_log(self, trainer: Trainer, log: TrainLog) -> None:
        for tag in ("loss", "acc", "lr", "images_per_s"):
            self.scalar(f"train/{tag}", getattr(log, tag), log.step)
        self.scalar("train/images_seen", log.images_seen, log.step)

    def on_epoch(self, trainer: Trainer, log: TrainLog, val: Evaluation | None) -> None:
        if val is not None:
            self.evaluation("val", val, log.step)
        self.writer.flush()

    def evaluation(self, tag: str, result: Evaluation, step: int) -> None:
        for name in ("loss", "acc", "top5"):
            self.scalar(f"{tag}/{name}", getattr(result, name), step)

    def scalar(self, tag: str, value: float, step: int) -> None:
        self.writer.add_scalar(tag, value, step)

    def close(self, config: dict[str, Any], metrics: dict[str, float]) -> None:
        """Write the hyper-parameters with the final metrics, and flush everything."""
        flat = dict(flatten(config))
        finals = {f"final/{name}": value for name, value in metrics.items()}
        self.writer.add_hparams(flat, finals, run_name=".")
        self.writer.close()


def flatten(config: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """{"model": {"depth": 6}} → [("model.depth", 6)]; what is no plain value becomes JSON."""
    pairs: list[tuple[str, Any]] = []
    for key, value in config.items():
        if isinstance(value, dict):
            pairs += flatten(value, f"{prefix}{key}.")
        else:
            plain = isinstance(value, bool | int | float | str)
            pairs.append((prefix + key, value if plain else json.dumps(value)))
    return pairs
