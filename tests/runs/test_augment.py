from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest
import torch
from torch import Tensor

from vit_train.data.config import AugmentConfig, ShapesConfig
from vit_train.data.dataset import make_splits
from vit_train.data.sources import load_dataset
from vit_train.runs.settings import SheetConfig
from vit_train.training.preview import draw_contact_sheet


def test_a_row_is_an_image_as_it_is_and_then_in_other_variants(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    drawn = {}

    class Figure:
        def savefig(self, file: IO[bytes], format: str) -> None:
            drawn["path"] = f"{Path(file.name).name.partition('.')[0]}.{format}"

    def grid(images: Tensor, labels: Sequence[list[str]], columns: int) -> Figure:
        drawn.update(images=images.unflatten(0, (-1, columns)), labels=labels)
        return Figure()

    monkeypatch.setattr("vit_train.training.preview.image_grid", grid)
    data = ShapesConfig(train_images=60, test_images=10, val_fraction=0.8)
    augment = AugmentConfig(mixup_alpha=1.0)
    out = str(tmp_path / "a.png")
    draw_contact_sheet(SheetConfig(data, augment, images=5, variants=3, out=out))
    images, labels = drawn["images"], drawn["labels"]
    assert images.shape == (5, 4, 3, 32, 32) and drawn["path"] == "a.png"
    for column in range(4):
        for other in range(column):
            assert not torch.equal(images[:, column], images[:, other])
    source = load_dataset(data)
    train = make_splits(source, data).train
    for row in range(5):
        (place,) = (train.images == images[row, 0]).flatten(1).all(1).nonzero()
        name = source.classes[train.labels[place]]
        assert labels[4 * row] == [name]
        # A mixed label names the image's own class.
        assert all(name in " ".join(each) for each in labels[4 * row : 4 * row + 4])
    again = images.clone()
    draw_contact_sheet(SheetConfig(data, augment, images=5, variants=3, out=out))
    assert torch.equal(drawn["images"], again)
