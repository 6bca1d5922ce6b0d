"""Classes of uneven size: what a user is told, and what each setting makes of them."""

from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL, Run, csv_rows
from PIL import Image

import vit_train
from vit_train.base.reading import read_json

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


RARE = ["data=folder", "data.root=rare", "data.image_size=8", "augment=none"]
RARE += ["model.embed_dim=8", "model.depth=1", "model.patch_size=8", "model.head=gap"]
RARE += ["train.epochs=6", "train.batch_size=16", "optim.lr=0.02"]


@pytest.fixture
def rare(tmp_path: Path) -> None:
    """Folders of dark images that are fine and, one for forty of these, bright ones that are not.

    In training, validation and testing.
    """
    rng = np.random.default_rng(0)
    for part, counts in (
        ("train", {"fine": 160, "broken": 4}),
        ("val", {"fine": 20, "broken": 4}),
        ("test", {"fine": 20, "broken": 4}),
    ):
        for name, count in counts.items():
            folder = tmp_path / "rare" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = rng.normal(90 if name == "fine" else 160, 12, (8, 8, 3))
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.usefixtures("rare")
def test_smoothed_labels_leave_the_weighted_classes_apart(run: Run, mixed: bool) -> None:
    """With torch's weights, every image is taken for the rare class: 50 % balanced."""
    mixup = ["augment.mixup_alpha=0.2"] if mixed else []
    outcome = run("vit-train", *RARE, *mixup, "task.class_weights=auto", "hydra.run.dir=run")
    assert outcome.status == 0, outcome.err
    final = read_json(Path("run/summary.json"))["test"]["final"]
    assert final["balanced_acc"] > 0.95 and final["acc"] > 0.9


BETTER = {"acc": max, "balanced_acc": max, "loss": min}


@pytest.mark.usefixtures("rare")
def test_the_best_epoch_of_uneven_classes_has_the_best_balanced_accuracy(run: Run) -> None:
    for metric, better in BETTER.items():
        chosen = [] if metric == "balanced_acc" else [f"checkpoint.metric={metric}"]
        outcome = run("vit-train", *RARE, *chosen, f"hydra.run.dir={metric}")
        assert outcome.status == 0, outcome.err
        assert ("best    the epoch with the highest balanced" in outcome.out) == (not chosen)
        best = read_json(Path(metric, "summary.json"))["best_val"]
        rows = csv_rows(f"{metric}/metrics.csv")
        assert best[metric] == better(float(row[f"val_{metric}"]) for row in rows)
        same = [row for row in rows if float(row[f"val_{metric}"]) == best[metric]]
        assert best["loss"] == min(float(row["val_loss"]) for row in same)


def test_the_metric_of_even_classes_is_the_accuracy_and_without_labels_the_loss(
    run: Run,
) -> None:
    few = [*SMALL, "train.epochs=1"]
    outcome = run("vit-train", *few, "hydra.run.dir=even")
    assert outcome.status == 0 and "highest balanced" not in outcome.out, outcome.err
    outcome = run("vit-train", *few, "data.sampler=balanced", "hydra.run.dir=made_even")
    assert "highest balanced" in outcome.out
    outcome = run("vit-train", *few, "task=reconstruct", "checkpoint.metric=acc")
    assert outcome.status == 1
    assert "checkpoint.metric=acc needs labels: task=reconstruct has none" in outcome.err
    outcome = run("vit-train", "checkpoint.metric=f1")
    assert "must be one of: auto, acc, balanced_acc, loss" in outcome.err
    outcome = run("vit-train", "resume=even", "checkpoint.metric=loss")
    assert "cannot change checkpoint.metric when resuming" in outcome.err
