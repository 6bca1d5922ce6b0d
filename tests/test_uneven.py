"""Classes of uneven size: the hint that names them, and the settings that balance them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SMALL, Run, SmallRun, csv_rows
from PIL import Image

import vit_train
from vit_train.base.reading import read_json
from vit_train.data.config import ShapesConfig
from vit_train.engine.distributed import ALONE
from vit_train.model.config import ViTConfig
from vit_train.runs.config import TrainConfig
from vit_train.tasks.config import ClassifyConfig, ReconstructConfig
from vit_train.training.setup import set_up

WAYS = ("data.sampler=balanced", "task.class_weights=auto")


Counts = dict[str, dict[str, int]]


def save_images(root: Path, counts: Counts, pixels: Callable[[str], np.ndarray]) -> None:
    """Fill a folder of images: parts, in them classes with so many images each."""
    for part, classes in counts.items():
        for name, count in classes.items():
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(pixels(name)).save(folder / f"{number}.png")


@pytest.fixture
def images(tmp_path: Path) -> np.ndarray:
    """Folders of 25 cats and 5 dogs, all of them the same gray image."""
    gray = np.full((8, 8, 3), 127, np.uint8)
    counts = {"train": {"cat": 25, "dog": 5}, "test": {"cat": 3, "dog": 1}}
    save_images(tmp_path / "images", counts, lambda name: gray)
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
    """Folders of dark images of a common class and bright ones of a rare class."""
    rng = np.random.default_rng(0)

    def pixels(name: str) -> np.ndarray:
        return rng.normal(90 if name == "fine" else 160, 12, (8, 8, 3)).astype(np.uint8)

    few = {"fine": 20, "broken": 4}
    save_images(
        tmp_path / "rare", {"train": {"fine": 160, "broken": 4}, "val": few, "test": few}, pixels
    )


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.usefixtures("rare")
def test_smoothed_labels_leave_the_weighted_classes_apart(run: Run, mixed: bool) -> None:
    """With torch's weights, every image is taken for the rare class: 50 % balanced."""
    mixup = ["augment.mixup_alpha=0.2"] if mixed else []
    run.succeeds("vit-train", *RARE, *mixup, "task.class_weights=auto", "hydra.run.dir=run")
    final = read_json(Path("run/summary.json"))["test"]["final"]
    assert final["balanced_acc"] > 0.95 and final["acc"] > 0.9


BETTER = {"acc": max, "balanced_acc": max, "loss": min}


@pytest.mark.usefixtures("rare")
def test_the_best_epoch_of_uneven_classes_has_the_best_balanced_accuracy(run: Run) -> None:
    for metric, better in BETTER.items():
        chosen = [] if metric == "balanced_acc" else [f"checkpoint.metric={metric}"]
        run.succeeds("vit-train", *RARE, *chosen, f"hydra.run.dir={metric}")
        best = read_json(Path(metric, "summary.json"))["best_val"]
        rows = csv_rows(f"{metric}/metrics.csv")
        assert best[metric] == better(float(row[f"val_{metric}"]) for row in rows)
        same = [row for row in rows if float(row[f"val_{metric}"]) == best[metric]]
        assert best["loss"] == min(float(row["val_loss"]) for row in same)


def test_the_metric_of_even_classes_is_the_accuracy_and_without_labels_the_loss(
    run: Run, small_run: SmallRun
) -> None:
    model = ViTConfig(embed_dim=8, depth=1, num_heads=1, patch_size=8)
    cpu, few = torch.device("cpu"), partial(ShapesConfig, train_images=30, test_images=10)
    for expected, data, task in (
        ("acc", few(), ClassifyConfig()),
        ("balanced_acc", few(sampler="balanced"), ClassifyConfig()),
        ("loss", few(), ReconstructConfig()),
    ):
        config = TrainConfig(model=model, data=data, task=task)
        assert set_up(config, cpu, ALONE).task.best_by == expected
    words = "checkpoint.metric=acc needs labels: task=reconstruct has none"
    run.fails(words, "vit-train", *SMALL, "task=reconstruct", "checkpoint.metric=acc")
    run.fails("must be one of: auto, acc, balanced_acc", "vit-train", "checkpoint.metric=f1")
    small_run("interrupted", "even")
    words = "cannot change checkpoint.metric when resuming"
    run.fails(words, "vit-train", "resume=even", "checkpoint.metric=loss")
