"""A student learns from a finished run, through the command line."""

import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from checkpoints import rewrite
from conftest import SMALL_MODEL, Run, SmallRun, csv_rows
from PIL import Image
from torch import Tensor

import vit_train
from vit_train.base.reading import read_json
from vit_train.data.config import ShapesConfig
from vit_train.data.dataset import make_splits
from vit_train.data.sources import load_dataset
from vit_train.runs.checkpoint import Checkpoint

DATA = ["data.train_images=200", "data.test_images=60"]
# Weights that stay as they are.
STILL = ["train.epochs=1", "optim.lr=1e-12", "augment=none", "train.batch_size=36"]
STUDENT = [*DATA, *SMALL_MODEL, *STILL, "task=distill", "task.teacher=teachers"]


def logits_of(run: str, images: Tensor) -> Tensor:
    """Of a run's last weights, for uint8 images (N,3,S,S), normalized as the run does."""
    model, meta = vit_train.load(f"{run}/checkpoints/last.safetensors")
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in meta.statistics)
    with torch.no_grad():
        logits: Tensor = model((images / 255 - mean) / std).double()
    return logits


def test_a_student_learns_from_a_finished_run(run: Run) -> None:
    # The teacher is a CNN, and knows the validation images: its normalization is another.
    cnn = ["model=cnn", "model.widths=[4,8]", "train.epochs=1", "data.val=none", *DATA]
    teacher = "teachers/first"
    assert run("vit-train", *cnn, f"hydra.run.dir={teacher}").status == 0
    mixed = ["task.alpha=0.7", "task.temperature=2", "train.max_minutes=1e-9"]
    outcome = run("vit-train", *STUDENT, *mixed, "hydra.run.dir=student")
    assert outcome.status == 0, outcome.err
    assert "teacher teachers/first (last.safetensors, raw weights), right on" in outcome.out

    # It goes on with this teacher and no other.
    path = Path(teacher, "checkpoints/last.safetensors")
    kept = path.read_bytes()
    checksum = Checkpoint.load(path).checksum
    rewrite(path, step=99)
    outcome = run("vit-train", "resume=student")
    assert outcome.status == 1 and "not this one, as it is now: teachers/first/ch" in outcome.err
    path.write_bytes(kept)
    outcome = run("vit-train", "resume=student", "train.max_minutes=null")
    assert outcome.status == 0, outcome.err

    # Its loss, computed here once more.
    data = ShapesConfig(train_images=200, test_images=60)
    splits = make_splits(load_dataset(data), data)
    s, t = (logits_of(each, splits.train.images) for each in ("student", teacher))
    labels = F.cross_entropy(s, splits.train.labels, label_smoothing=0.1)
    p, q = (t / 2).softmax(1), (s / 2).softmax(1)
    loss = 0.3 * labels + 0.7 * 4 * (p * (p / q).log()).sum(1).mean()
    (row,) = csv_rows("student/metrics.csv")
    assert float(row["train_loss"]) == pytest.approx(loss.item(), rel=1e-5)

    noted = read_json(Path("student/summary.json"))["teacher"]
    assert splits.val is not None
    right = logits_of(teacher, splits.val.images).argmax(1) == splits.val.labels
    assert noted["val_acc"] == pytest.approx(right.double().mean().item())
    assert (noted["run"], noted["fingerprint"]) == (teacher, checksum)
    assert f"teacher: {teacher}\n" in Path("student/config.yaml").read_text(encoding="utf-8")

    # The student is a classifier of its own.
    shutil.rmtree("teachers")
    Image.new("RGB", (40, 40), (255, 0, 0)).save("photo.png")
    outcome = run("vit-predict", "ckpt=student", "images=photo.png")
    assert outcome.status == 0, outcome.err
    weights = Checkpoint.load(Path("student/checkpoints/last.safetensors")).model
    assert weights.keys() == vit_train.load("student")[0].state_dict().keys()


def test_what_cannot_teach_is_refused(run: Run, small_run: SmallRun) -> None:
    small_run("interrupted")
    small = [*DATA, *SMALL_MODEL, "task=distill"]
    for arguments, words in {
        "": "missing: task.teacher=RUN, a trained classifier",
        "task.teacher=nowhere": "no checkpoint at nowhere",
        "task.teacher=builtin:cifar10": "task.teacher=builtin:cifar10: its classes are airplane",
        "task.teacher=run data.image_size=40": "40 by 40: set data.image_size=32",
    }.items():
        outcome = run("vit-train", *small, *arguments.split(), "hydra.run.dir=new")
        assert outcome.status == 1 and words in outcome.err, outcome.err
        assert "Traceback" not in outcome.err and not Path("new").exists()
