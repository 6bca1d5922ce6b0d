"""Training without labels, and the use of its models, at the command line."""

import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from checkpoints import rewrite
from conftest import KINDS, SMALL, SMALL_MODEL, Run, SmallRun, csv_rows, write_images
from PIL import Image
from small_sets import small_stl10
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

import vit_train
from vit_train.base.reading import read_json
from vit_train.config.data import ShapesConfig
from vit_train.config.model import FastCnnConfig
from vit_train.config.tasks import ClassifyConfig
from vit_train.config.training import AdamWConfig
from vit_train.data.dataset import load_dataset
from vit_train.data.splits import make_splits
from vit_train.model.cnn import FastCnn
from vit_train.run import start
from vit_train.tasks import count_flops
from vit_train.trained.checkpoint import Checkpoint


def train(run: Run, folder: str, *arguments: str) -> None:
    quick = [*SMALL, "data.train_images=100", "train.epochs=1", f"hydra.run.dir={folder}"]
    run.succeeds("vit-train", *quick, *arguments)


@pytest.mark.parametrize("task", ["reconstruct", "autoregress"])
def test_a_run_reports_its_loss_and_shows_pictures(
    run: Run, small_run: SmallRun, task: str
) -> None:
    summary = read_json(small_run(task) / "summary.json")
    assert set(summary["best_val"]) == {"epoch", "loss"} and "acc" not in summary["test"]["final"]
    header = Path("run/metrics.csv").read_text(encoding="utf-8").splitlines()[0]
    validated = {"reconstruct": "val_loss,val_knn_acc", "autoregress": "val_loss"}[task]
    assert header == f"epoch,step,images_seen,lr,train_loss,{validated},images_per_s,seconds"
    tags = EventAccumulator("run").Reload().Tags()
    assert {"loss/train", "loss/val", "test/loss"} <= set(tags["scalars"])
    accuracies = {"reconstruct": ["val/knn_acc"], "autoregress": []}[task]
    assert [tag for tag in tags["scalars"] if "acc" in tag] == accuracies
    assert set(tags["images"]) == {"train/augmented", "val/pictures"}
    with Image.open("run/pictures.png") as picture:
        picture.verify()
    run.says("written to run/eval-test/", "vit-eval", "ckpt=run")
    evaluated = read_json(Path("run/eval-test/results.json"))["result"]
    assert evaluated == summary["test"]["best"]


def test_a_post_ln_model_without_a_final_norm_is_used_like_any_other(run: Run) -> None:
    post_ln = ["model.pre_norm=false", "model.final_norm=false"]
    train(run, "run", *post_ln)
    for command in ("vit-explain", "vit-eval"):
        run.succeeds(command, "ckpt=run")
    run.fails("model.final_norm=False", "vit-export", "ckpt=run", "format=timm")
    train(run, "next", *post_ln, "init_from=run")
    words = "to match it, set model.final_norm=false\n"
    run.fails(words, "vit-train", "model=tiny", *SMALL, "model.pre_norm=false", "init_from=run")


def test_a_model_takes_the_shape_of_its_pretrained_encoder(run: Run, small_run: SmallRun) -> None:
    small_run("finished", "source")
    loop = [each for each in SMALL if not each.startswith("model.")]
    taken = (
        "settings for init_from=source (yours take precedence): model.embed_dim=16 model.depth=2 "
    )
    tune = [*loop, "init_from=source", "model.dropout=0.1"]
    run.says(taken, "vit-train", *tune, "hydra.run.dir=tuned")
    config = read_json(Path("tuned/summary.json"))["config"]["model"]
    assert (config["embed_dim"], config["depth"], config["dropout"]) == (16, 2, 0.1)
    # A repeated sweep goes on with its runs, though its command says nothing of what they took.
    sweep = ["vit-train", "-m", *tune, "seed=0", "hydra.sweep.dir=sweep"]
    run.succeeds(*sweep, "train.max_minutes=1e-9")
    run.says("resuming after step 1", *sweep)
    run.fails("to match it, set model.depth=2", "vit-train", *tune, "model.depth=3")
    # 16 × 32 hidden units are as many as those of the default model, 128 × 4.
    run.succeeds("vit-train", *SMALL, "model.mlp_ratio=32", "hydra.run.dir=wide")
    run.succeeds("vit-train", *loop, "init_from=wide")
    run.succeeds("vit-train", *loop, "model=cnn", "model.widths=[4]", "hydra.run.dir=cnn")
    words = "this model is not a Vision Transformer, so its weights cannot be used"
    run.fails(words, "vit-train", *loop, "init_from=cnn")
    run.fails("model.embed_dim=16 model.depth=2", "vit-train", *tune, "model=tiny")


TUNED = [32, *(AdamWConfig.fine_tuning[each] for each in ("lr", "layer_decay")), 20]
# Of a run with more settings: the image size, learning rate, layer decay and number of epochs.
FITTED: dict[str, list[object]] = {
    "init_from=finished": TUNED,
    # A default that is typed is set, too.
    "init_from=finished optim.lr=1e-3 data.image_size=64 train.epochs=3": [64, 1e-3, TUNED[2], 3],
    "init_from=finished optim=muon": [32, 1e-3, *TUNED[2:]],
    "init_from=finished optim=sgd": [32, 0.05, *TUNED[2:]],
    "init_from=finished train.freeze=encoder": [32, 1e-3, 1, 30],
    "init_from=finished task=reconstruct": [32, 1e-3, 1, 30],
    "init_from=reconstruct": [32, 1e-3, 1, 30],
    "model=vit model.depth=1": [64, 1e-3, 1, 30],
}


@pytest.mark.parametrize("settings", FITTED)
def test_fine_tuning_is_one_setting(run: Run, small_run: SmallRun, settings: str) -> None:
    for kind in ("finished", "reconstruct"):
        small_run(kind, kind)
    write_images("mine", [f"{name}/{number}.png" for name in "ab" for number in range(20)])
    mine = ["data=folder", "data.root=mine", "train.max_minutes=1e-9"]
    outcome = run.succeeds("vit-train", *mine, *settings.split(), "hydra.run.dir=run")
    config = vit_train.load("run/checkpoints/last.safetensors").meta.config
    data, optim = config.data, config.optim
    found = [data.image_size, optim.lr, optim.layer_decay, config.train.epochs]
    assert found == FITTED[settings]
    is_tuned = "optim.layer_decay=0.75" in outcome.said
    assert is_tuned == (optim.layer_decay != 1) and "hint" not in outcome.said


def test_a_folder_gets_better_commands_if_its_user_chose_no_sizes(run: Run) -> None:
    write_images("mine", [f"{name}/{number}.png" for name in "ab" for number in range(10)])
    own = ["vit-train", "data=folder", "data.root=mine", "train.epochs=1", "train.max_minutes=1e-9"]
    said = run.succeeds(*own).said
    for better in ("init_from=builtin:cifar10", "model.patch_size=8"):
        assert f"{' '.join(own)} {better}" in said


def test_one_folder_of_images_is_enough_without_labels(run: Run) -> None:
    """Without validation, the pictures are of training images."""
    write_images("mine", [f"{number}.png" for number in range(30)])
    mine = ["data=folder", "data.root=mine", "data.image_size=16", "train.epochs=1"]
    mine += [*SMALL_MODEL[:2], "train.batch_size=8", "data.val=none", "hydra.run.dir=run"]
    run.fails("task=classify needs at least two classes, but found 1: name", "vit-train", *mine)
    run.succeeds("vit-train", *mine, *KINDS["reconstruct"])
    assert set(EventAccumulator("run").Reload().Tags()["images"]) >= {"val/pictures"}
    assert Path("run/pictures.png").exists()


def test_images_without_labels_can_be_mixed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    small_stl10(monkeypatch, Path("data"))
    stl10 = ["data=stl10", "data.unlabeled=true", "data.image_size=32", "augment=strong"]
    small = [*SMALL_MODEL, *stl10, *KINDS["reconstruct"], "hydra.run.dir=run"]
    run.says("67 training", "vit-train", *small)  # 27 labeled ones and 40 others


def test_a_classifier_begins_with_the_encoder_and_a_fresh_head(
    run: Run, small_run: SmallRun
) -> None:
    small_run("reconstruct", "mae/0")
    # A learning rate so small that the weights stay where they began.
    train(run, "classifier", "init_from=mae", "optim.lr=1e-12")
    log = Path("classifier/train.log").read_text(encoding="utf-8")
    assert "starts from the encoder of mae/0" in log  # which may not be the newest one tomorrow
    assert "init_from: mae/0" in Path("classifier/config.yaml").read_text(encoding="utf-8")
    encoder = vit_train.load("mae")[0].encoder.state_dict()
    classifier = vit_train.load("classifier")[0].state_dict()
    same = {key: classifier[key] for key in encoder}
    torch.testing.assert_close(same, dict(encoder), rtol=0, atol=1e-7)
    assert classifier["head.weight"].abs().max() < 1e-7
    # And the other way round, at another image size.
    larger = ["data.image_size=40", *KINDS["reconstruct"], "optim.lr=1e-12"]
    train(run, "again", "init_from=classifier", *larger)
    again, key = vit_train.load("again")[0].encoder.state_dict(), "blocks.0.attn.qkv.weight"
    torch.testing.assert_close(again[key], encoder[key], rtol=0, atol=1e-7)
    assert again["pos_embed.0.weight"].shape == (1, 101, 16)


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


def test_labels_do_not_matter_to_a_student_that_learns_from_its_teacher_alone(run: Run) -> None:
    names = [f"{number}.png" for number in range(24)]
    write_images(".", names)
    splits = ["train"] * 16 + ["val"] * 4 + ["test"] * 4
    students = []
    for labels in ("aabb" * 6, "ba" * 8 + "aabb" * 2):  # other labels in training alone
        rows = map(",".join, zip(names, labels, splits, strict=True))
        Path("table.csv").write_text("path,label,split\n" + "\n".join(rows), encoding="utf-8")
        table = [*SMALL_MODEL, "data=table", "data.file=table.csv", "train.epochs=1"]
        if not students:
            run.succeeds("vit-train", *table, "hydra.run.dir=teacher")
        distill = ["task=distill", "task.teacher=teacher", "task.alpha=1", "task.temperature=1"]
        run.succeeds("vit-train", *table, *distill, f"hydra.run.dir=student-{len(students)}")
        file = f"student-{len(students)}/checkpoints/last.safetensors"
        students.append(Checkpoint.load(Path(file)).model)
    first, second = students
    assert all(first[key].equal(second[key]) for key in first)


def test_a_student_learns_from_a_finished_run(run: Run) -> None:
    # The teacher is a CNN, and knows the validation images: its normalization is another.
    cnn = ["model=cnn", "model.widths=[4,8]", "train.epochs=1", "data.val=none", *DATA]
    teacher, mixed = "teachers/first", ["task.alpha=0.7", "task.temperature=2"]
    run.succeeds("vit-train", *cnn, f"hydra.run.dir={teacher}")
    words = "teacher teachers/first/checkpoints/last.safetensors"
    begin = [*STUDENT, *mixed, "train.max_minutes=1e-9", "hydra.run.dir=student"]
    run.says(words, "vit-train", *begin)

    # It goes on with this teacher and no other.
    path = Path(teacher, "checkpoints/last.safetensors")
    kept, checksum = path.read_bytes(), Checkpoint.load(path).checksum
    rewrite(path, step=99)
    words = "the teacher teachers/first/ch"
    run.fails(words, "vit-train", "resume=student")
    path.write_bytes(kept)
    run.succeeds("vit-train", "resume=student", "train.max_minutes=null")

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
    assert noted["checkpoint"].startswith(teacher) and noted["fingerprint"] == checksum
    assert f"teacher: {teacher}\n" in Path("student/config.yaml").read_text(encoding="utf-8")

    # The student is a classifier of its own.
    shutil.rmtree("teachers")
    write_images(".", ["photo.png"])
    run.succeeds("vit-predict", "ckpt=student", "images=photo.png")
    weights = Checkpoint.load(Path("student/checkpoints/last.safetensors")).model
    assert weights.keys() == vit_train.load("student")[0].state_dict().keys()


def test_a_fast_cnn_is_whitened_by_images_of_every_class(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, level in (("dark", 0), ("light", 160)):
        write_images("photos", [f"{name}/{number}.png" for number in range(20)], (level,) * 3)
    monkeypatch.setattr(start, "WHITENED_IMAGES", 10)
    monkeypatch.setattr(FastCnn, "whiten", whiten := Mock())
    photos = ["data=folder", "data.root=photos", "data.image_size=16"]
    run.succeeds("vit-train", *photos, "model=fast_cnn", "train.max_minutes=1e-9")
    assert (whiten.call_args.args[0].mean((1, 2, 3)) > 0).sum() == 5


def test_the_arithmetic_of_a_taught_run_includes_the_teachers(run: Run) -> None:
    teacher = ["model=fast_cnn", "model.widths=[4]", "optim=muon", "hydra.run.dir=teachers/first"]
    run.succeeds("vit-train", *DATA, "train.epochs=1", *teacher)
    fast = ["optim=muon", "precision=bf16", "model.patch_dropout=0.5", "train.epochs=1"]
    run.succeeds("vit-train", *STUDENT, *fast, "task.hint=2", "hydra.run.dir=taught")
    run.succeeds("vit-train", *STUDENT[:-2], *fast, "hydra.run.dir=alone")
    taught, alone = (read_json(Path(each, "summary.json")) for each in ("taught", "alone"))
    forward = count_flops(ClassifyConfig(), FastCnnConfig(widths=[4]), (3, 32, 32), 10).forward
    more = taught["training_tflop"] - alone["training_tflop"]
    assert more == pytest.approx(taught["images_seen"] * forward / 1e12)
