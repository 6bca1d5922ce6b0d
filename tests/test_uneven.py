"""Classes of uneven size: what a user is told, and what each setting makes of them."""

from pathlib import Path

import numpy as np
import pytest
from conftest import Run
from PIL import Image

import vit_train
from vit_train.files.reading import read_json

WAYS = ("data.sampler=balanced", "task.class_weights=auto")


@pytest.fixture
def images(tmp_path: Path) -> np.ndarray:
    """Folders of 25 cats and 5 dogs that nothing tells apart, for training and for testing."""
    gray = np.full((8, 8, 3), 127, np.uint8)
    for part, counts in (("train", {"cat": 25, "dog": 5}), ("test", {"cat": 3, "dog": 1})):
        for name, count in counts.items():
            folder = tmp_path / "images" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(gray).save(folder / f"{number}.png")
    return gray


def test_each_setting_gives_both_classes_the_same_chance(run: Run, images: np.ndarray) -> None:
    data = ["data=folder", "data.root=images", "data.image_size=8", "data.val=none"]
    model = ["model.embed_dim=8", "model.depth=1", "model.patch_size=8", "model.head=gap"]
    loop = ["train.epochs=8", "train.batch_size=10", "optim.lr=0.05", "augment=none"]
    quiet = [*data, *model, *loop, "task.label_smoothing=0"]
    outcome = run("vit-train", *quiet, "train.max_minutes=1e-9")
    assert "uneven classes: 25 training images of cat, 5 of dog" in outcome.out
    assert all(way in outcome.out for way in WAYS)
    for way in WAYS:
        folder = way.partition(".")[0]
        outcome = run("vit-train", *quiet, way, f"hydra.run.dir={folder}")
        assert outcome.status == 0 and "uneven classes" not in outcome.out, outcome.err
        answer = vit_train.load(folder).predict(images)  # 1/6 without the setting
        assert dict(answer.top)["dog"] == pytest.approx(0.5, abs=0.08), way
    assert "balanced 50.00%" in outcome.out
    summary = read_json(Path("task/summary.json"))
    assert summary["test"]["final"]["balanced_acc"] == 0.5
