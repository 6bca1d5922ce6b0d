"""The batch that gave no finite loss, for looking into it."""

import logging
from pathlib import Path

import torch

from vit_train.engine.callbacks import Callback
from vit_train.engine.trainer import Trainer
from vit_train.files.writing import replacing

logger = logging.getLogger(__name__)


class BadBatchSaver(Callback):
    """Writes nonfinite-step-N.pt: the images and targets exactly as the model got them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_nonfinite(self, trainer: Trainer, step: int) -> None:
        epoch, batch = trainer.place_of(step)
        images, targets = next(trainer.train.epoch(epoch, batch))  # drawn again, the same
        path = self.folder / f"nonfinite-step-{step}.pt"
        place = {"step": step, "epoch": epoch, "batch": batch}
        with replacing(path) as file:
            torch.save({"images": images.cpu(), "targets": targets.cpu(), **place}, file)
        logger.warning(f"no finite loss or gradient at step {step}: its batch is in {path}")
