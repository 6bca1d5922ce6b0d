from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from vit_train.engine.callbacks import TrainLog
from vit_train.report.pictures import Pictures
from vit_train.report.tensorboard import TensorBoard


def test_what_is_evaluated_is_shown_at_its_step_and_the_latest_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawing takes a second, and the second epoch ends too soon to be worth one."""
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)

    class Trainer:
        model, eval_model = nn.Linear(1, 1), nn.Linear(1, 1)
        finished = False

    def draw(model: nn.Module) -> Image.Image:
        nonlocal now
        now += 1
        grey = int(model.weight.item())
        return Image.new("RGB", (4, 3), (grey, grey, grey))

    board, path = TensorBoard(tmp_path), tmp_path / "pictures.png"
    pictures = Pictures(draw, board, path)
    for epoch, grey, minutes in ((1, 50, 1), (2, 90, 1), (3, 120, 4), (4, 200, 1)):
        now += 60 * minutes
        Trainer.finished = epoch == 4
        with torch.no_grad():
            Trainer.eval_model.weight.fill_(grey)
            Trainer.model.weight.fill_(7)
        pictures.on_epoch(Trainer, TrainLog(epoch, 10 * epoch, 0, {}, 0.1, 1), None)
    board.flush()
    assert (np.asarray(Image.open(path)) == 200).all()
    events = EventAccumulator(str(tmp_path)).Reload().Images("val/pictures")
    assert [event.step for event in events] == [10, 30, 40]
