"""Weights of images in the training loss: the column `weight` of a table."""

from pathlib import Path

import pytest
import torch
from conftest import Run, write_images
from torch import Tensor, nn

from vit_train.config.augment import AugmentConfig
from vit_train.config.model import ModelConfig
from vit_train.config.tasks import ClassifyConfig, DistillConfig, LabelsConfig, TagsConfig
from vit_train.data.batches import Normalize, TrainBatches
from vit_train.data.dataset import ImageSet, Statistics
from vit_train.tasks import make_task
from vit_train.tasks.classify import Classify, Teacher

SAME = Normalize(Statistics((0.0,) * 3, (1.0,) * 3))
PIXELS = torch.randint(256, (6, 3, 4, 4), dtype=torch.uint8)
TIMES = torch.tensor([1, 3, 2, 5, 1, 4])
MIXED = {"crop_padding": 0, "flip": False, "mixup_alpha": 1.0, "cutmix_alpha": 1.0}


def batches(images: Tensor, labels: Tensor, **augment: object) -> TrainBatches:
    """One batch of all images, of which there are six classes or tags."""
    config = AugmentConfig(**({"crop_padding": 0, "flip": False} | augment))  # type: ignore[arg-type]
    return TrainBatches(
        ImageSet(images, labels), 6, SAME, config, len(images), 0, torch.device("cpu")
    )


TASKS = [
    ClassifyConfig(label_smoothing=0.2),
    ClassifyConfig(class_weights=[0.5, 2, 1, 1, 3, 0.1]),
    TagsConfig(label_smoothing=0.2, class_weights="auto"),
    DistillConfig(teacher="", distillation="soft"),
    DistillConfig(teacher="", distillation="hard"),
]


@pytest.mark.parametrize("config", TASKS, ids=str)
def test_an_image_of_weight_3_counts_like_3_images(config: LabelsConfig) -> None:
    tags = (torch.rand(6, 6) < 0.5).float()
    labels = tags if isinstance(config, TagsConfig) else torch.tensor([0, 4, 2, 2, 5, 1])
    model, other = (nn.Sequential(nn.Flatten(), nn.Linear(48, 6)) for _ in range(2))
    found = []
    for weighted in (True, False):
        task = make_task(config, ModelConfig(), (3, 4, 4), 6)
        assert isinstance(task, Classify)
        task = task.for_training(labels, weighted, "acc", Teacher(other, SAME, SAME))
        whole = PIXELS, labels
        loader = (
            batches(*whole).weighted(0.1 * TIMES)
            if weighted
            else batches(*(each.repeat_interleave(TIMES, 0) for each in whole))
        )
        sums, count = task.step_sums(model, *next(loader.epoch(0))), len(task.measures)
        found.append(sums[:count] / (sums[count:] if task.weighs else loader.batch_size))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("labels", [torch.arange(6), torch.eye(6)], ids=["classes", "tags"])
def test_each_part_of_a_mixed_image_has_its_own_weight(labels: Tensor) -> None:
    """Each image has a class or a tag of its own, so that the plain target names its parts."""
    plain = batches(PIXELS, labels, **MIXED)
    (images, shares), (same, targets) = (
        next(each.epoch(0)) for each in (plain, plain.weighted(0.1 * TIMES))
    )
    assert torch.equal(images, same) and (shares > 0).sum(1).max() == 2
    torch.testing.assert_close(targets[:, :6], shares * 0.1 * TIMES)
    if labels.ndim == 2:
        torch.testing.assert_close(targets[:, 6], shares @ (0.1 * TIMES))


COLORS = {"dark": (10, 10, 10), "light": (250, 250, 250)}
SETTINGS = [
    *("data=table", "data.file=t.csv", "data.image_size=16", "model.embed_dim=16", "model.depth=1"),
    *("model.patch_size=8", "train.batch_size=8", "train.epochs=6", "optim.lr=1e-2"),
]


def write_table(kind: str, *weights: str) -> None:
    """Each training image has one right and three wrong labels; the weights are theirs.

    Each color has a test image. With one class per image, a third one has both labels.
    """
    lines = [f"path,{kind},split,weight"]
    for label, wrong in zip(COLORS, reversed(COLORS), strict=True):
        for name in write_images(".", [f"{label}{i}.png" for i in range(16)], COLORS[label]):
            given = zip((label, wrong, wrong, wrong), weights, strict=True)
            lines += [f"{name},{each},train,{weight}" for each, weight in given]
        tested = [f"{label}.png", *["both.png"] * (kind == "label")]
        write_images(".", tested, COLORS[label])
        lines += [f"{name},{label},test,0" for name in tested]
    Path("t.csv").write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.parametrize("task", ["classify", "tags"])
def test_wrong_labels_of_low_weight_do_no_harm(run: Run, task: str) -> None:
    kind = "tags" if task == "tags" else "label"
    train = ["vit-train", f"task={task}", *SETTINGS, "augment.mixup_alpha=0.2"]
    write_table(kind, "", "0.001", "0.001", "0")
    run.says("training images with weights from 0.001 to 1", *train, "hydra.run.dir=run")
    said = run.succeeds("vit-eval", "ckpt=run/checkpoints/last.safetensors").said
    assert ("top-1 75.00%" if task == "classify" else "mAP 100.00%") in said
    write_table(kind, "0", "0", "0", "0")
    run.fails("all training images have weight 0", *train)
