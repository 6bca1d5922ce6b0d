"""The batch whose loss or gradient was NaN or infinity, saved for debugging."""

import logging
from pathlib import Path

import torch

from vit_train.engine.callbacks import Callback
from vit_train.engine.trainer import Trainer
from vit_train.files.writing import replacing

logger = logging.getLogger(__name__)


class BadBatchSaver(Callback):
    """Writes nonfinite-step-N.pt: the images and targets exactly as the model received them.

    Of several processes' batch these are the first one's share.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_nonfinite(self, trainer: Trainer, step: int) -> None:
        epoch, batch = divmod(step - 1, len(trainer.train_loader))
        images, targets = next(trainer.train_loader.epoch(epoch, batch))  # the same batch again
        path = self.folder / f"nonfinite-step-{step}.pt"
        place = {"step": step, "epoch": epoch, "batch": batch}
        with replacing(path) as file:
            torch.save({"images": images.cpu(), "targets": targets.cpu(), **place}, file)
        share = "the batch" if trainer.processes.count == 1 else "this process's share of the batch"
        logger.warning(f"NaN or infinity in loss or gradient at step {step}: {share} is in {path}")
