"""Classes of uneven size: what a user is told, and what each setting makes of them."""

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import Run
from PIL import Image

import vit_train

WAYS = {"": 10 / 60, "data.sampler=balanced": 0.5, "task.class_weights=auto": 0.5}


@pytest.fixture
def images(tmp_path: Path) -> np.ndarray:
    """Folders of 50 cats and 10 dogs that nothing tells apart, for training and for testing."""
    gray = np.full((8, 8, 3), 127, np.uint8)
    for part, counts in (("train", {"cat": 50, "dog": 10}), ("test", {"cat": 9, "dog": 3})):
        for name, count in counts.items():
            folder = tmp_path / "images" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(gray).save(folder / f"{number}.png")
    return gray


def test_each_setting_gives_both_classes_the_same_chance(run: Run, images: np.ndarray) -> None:
    data = ["data=folder", "data.root=images", "data.image_size=8", "data.val=none"]
    model = ["model.embed_dim=8", "model.depth=1", "model.patch_size=8", "task.label_smoothing=0"]
    loop = ["train.epochs=12", "train.batch_size=20", "optim.lr=0.05", "augment=none"]
    for way, expected in WAYS.items():
        chosen = [way] if way else []
        outcome = run("vit-train", *data, *model, *loop, *chosen, f"hydra.run.dir=runs/{way[:4]}")
        assert outcome.status == 0, outcome.err
        answer = vit_train.load(f"runs/{way[:4]}").predict(images)
        assert dict(answer.top)["dog"] == pytest.approx(expected, abs=0.08), way
        told = "uneven classes: 50 training images of cat, 10 of dog" in outcome.out
        assert told == (not way)
        if told:
            assert "data.sampler=balanced" in outcome.out
            assert "task.class_weights=auto" in outcome.out
    assert "balanced 50.00%" in outcome.out
    summary = json.loads(Path("runs/task/summary.json").read_text(encoding="utf-8"))
    assert summary["test"]["final"]["balanced_acc"] == 0.5
    table = run("vit-results", "runs").out
    assert "balanced test accuracy, final weights (%)" in table and "| 50.00 |" in table
