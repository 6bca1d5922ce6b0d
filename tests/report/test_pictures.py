from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from vit_train.engine.callbacks import TrainLog
from vit_train.report.pictures import Pictures
from vit_train.report.tensorboard import TensorBoard


def test_what_is_evaluated_is_shown_at_its_step_and_the_latest_kept(tmp_path: Path) -> None:
    class Trainer:
        model, eval_model = nn.Linear(1, 1), nn.Linear(1, 1)

    def draw(model: nn.Module) -> Image.Image:
        grey = int(model.weight.item())
        return Image.new("RGB", (4, 3), (grey, grey, grey))

    board, path = TensorBoard(tmp_path), tmp_path / "pictures.png"
    pictures = Pictures(draw, board, path)
    for epoch, grey in ((1, 50), (2, 200)):
        with torch.no_grad():
            Trainer.eval_model.weight.fill_(grey)
            Trainer.model.weight.fill_(7)
        pictures.on_epoch(Trainer, TrainLog(epoch, 10 * epoch, 0, {}, 0.1, 1), None)
    board.flush()
    assert (np.asarray(Image.open(path)) == 200).all()
    events = EventAccumulator(str(tmp_path)).Reload().Images("pictures")
    assert [event.step for event in events] == [10, 20]
