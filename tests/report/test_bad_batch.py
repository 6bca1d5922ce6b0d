from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from vit_train.engine.distributed import ALONE
from vit_train.training.checkpoints import BadBatchSaver


def test_the_batch_is_kept_with_its_place(tmp_path: Path) -> None:
    class TrainLoader:
        def __len__(self) -> int:
            return 10

        def epoch(self, epoch: int, first: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
            for number in range(first, 10):
                yield torch.full((2, 3), 100.0 * epoch + number), torch.tensor([epoch, number])

    class Trainer:
        train_loader = TrainLoader()
        processes = ALONE

    BadBatchSaver(tmp_path).on_nonfinite(Trainer(), 28)
    kept = torch.load(tmp_path / "nonfinite-step-28.pt", weights_only=True)
    assert (kept["step"], kept["epoch"], kept["batch"]) == (28, 2, 7)
    assert (kept["images"] == 207).all() and kept["targets"].tolist() == [2, 7]
