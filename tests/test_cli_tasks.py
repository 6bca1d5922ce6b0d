"""Training without labels, and the use of its models, at the command line."""

from pathlib import Path

import pytest
import torch
from conftest import KINDS, SMALL, SMALL_MODEL, Run, SmallRun
from PIL import Image
from small_sets import small_stl10
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import vit_train
from vit_train.base.reading import read_json


def train(run: Run, folder: str, *arguments: str) -> dict[str, object]:
    quick = [*SMALL, "data.train_images=100", f"hydra.run.dir={folder}"]
    run.succeeds("vit-train", *quick, *arguments)
    return read_json(Path(folder, "summary.json"))


@pytest.mark.parametrize("task", ["reconstruct", "autoregress"])
def test_a_run_reports_its_loss_and_shows_pictures(
    run: Run, small_run: SmallRun, task: str
) -> None:
    small_run(task)
    summary = read_json(Path("run/summary.json"))
    assert set(summary["best_val"]) == {"epoch", "loss"} and "acc" not in summary["test"]["final"]
    header = Path("run/metrics.csv").read_text(encoding="utf-8").splitlines()[0]
    assert header == "epoch,step,images_seen,lr,train_loss,val_loss,images_per_s,seconds"
    tags = EventAccumulator("run").Reload().Tags()
    assert {"loss/train", "loss/val", "test/loss"} <= set(tags["scalars"])
    assert not [tag for tag in tags["scalars"] if "acc" in tag]
    assert set(tags["images"]) == {"train/augmented", "val/pictures"}
    with Image.open("run/pictures.png") as picture:
        assert min(picture.size) > 200

    assert "written to run/eval-test/" in run.succeeds("vit-eval", "ckpt=run").out
    evaluated = read_json(Path("run/eval-test/results.json"))["result"]
    assert evaluated == summary["test"]["best"]


def test_what_is_for_classifiers_is_refused_before_anything_is_evaluated(
    run: Run, small_run: SmallRun
) -> None:
    small_run("reconstruct"), small_run("autoregress", "other")
    for refused in ("ckpt=run tta=flip", "ckpt=run robustness=true", "ckpt=[run,other]"):
        outcome = run.fails("classifiers", "vit-eval", *refused.split())
        assert "evaluating" not in outcome.out and not list(Path("run").glob("eval-*"))


@pytest.mark.parametrize("experiment", ["system_d_classifier", "system_d_decoder"])
def test_the_presets_of_system_d_train_and_are_evaluated(run: Run, experiment: str) -> None:
    settings = ["model.num_heads=2", "train.log_every=1"]
    train(run, "run", f"experiment={experiment}", "data=shapes", *settings)
    scalars = EventAccumulator("run").Reload().Scalars("train/lr")
    rates = [round(each.value / 3e-4, 3) for each in scalars]
    assert rates == [1.0, 1.0, 0.5, 0.5]  # two steps in each of two epochs
    run.succeeds("vit-eval", "ckpt=run")


def test_a_post_ln_model_without_a_final_norm_is_used_like_any_other(run: Run) -> None:
    post_ln = ["model.pre_norm=false", "model.final_norm=false", "train.epochs=1"]
    train(run, "run", *post_ln)
    for command in ("vit-explain", "vit-eval"):
        run.succeeds(command, "ckpt=run")
    run.fails("model.final_norm=False", "vit-export", "ckpt=run", "format=timm")
    train(run, "next", *post_ln, "init_from=run")
    words = "set model.final_norm=false\n"
    run.fails(words, "vit-train", *SMALL, "model.pre_norm=false", "init_from=run")


def test_without_validation_the_pictures_are_of_training_images(run: Run) -> None:
    train(run, "run", *KINDS["reconstruct"], "data.val=none", "train.epochs=1")
    assert set(EventAccumulator("run").Reload().Tags()["images"]) >= {"val/pictures"}
    assert Path("run/pictures.png").exists()


def test_one_folder_of_images_is_enough_without_labels(run: Run) -> None:
    Path("mine/all").mkdir(parents=True)
    for number in range(30):
        Image.new("RGB", (20, 20), (8 * number, 0, 90)).save(f"mine/all/{number}.png")
    mine = ["data=folder", "data.root=mine", "data.image_size=16", "train.epochs=1"]
    run.succeeds("vit-train", *SMALL_MODEL, *mine, *KINDS["reconstruct"], "hydra.run.dir=run")
    run.fails("task=classify needs at least two", "vit-train", *SMALL_MODEL, *mine)


def test_images_without_labels_can_be_mixed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    small_stl10(monkeypatch, Path("data"))
    stl10 = ["data=stl10", "data.unlabeled=true", "data.image_size=32", "augment=strong"]
    outcome = run.succeeds(
        "vit-train", *SMALL_MODEL, *stl10, *KINDS["reconstruct"], "hydra.run.dir=run"
    )
    assert "67 training" in outcome.out  # 27 labeled ones and 40 others


def test_a_classifier_begins_with_the_encoder_and_a_fresh_head(
    run: Run, small_run: SmallRun
) -> None:
    small_run("reconstruct", "mae/0")
    # A learning rate so small that the weights stay where they began.
    still = ["optim.lr=1e-12", "train.epochs=1"]
    train(run, "classifier", "init_from=mae", *still)
    log = Path("classifier/train.log").read_text(encoding="utf-8")
    assert "starts from the encoder of mae/0" in log  # which may not be the newest one tomorrow
    assert "init_from: mae/0" in Path("classifier/config.yaml").read_text(encoding="utf-8")
    encoder = vit_train.load("mae")[0].encoder.state_dict()
    classifier = vit_train.load("classifier")[0].state_dict()
    for key, value in encoder.items():
        torch.testing.assert_close(classifier[key], value, rtol=0, atol=1e-7)
    assert classifier["head.weight"].abs().max() < 1e-7
    # And the other way round, at another image size.
    larger = ["data.image_size=40", *KINDS["reconstruct"]]
    train(run, "again", "init_from=classifier", *larger, *still)
    again = vit_train.load("again")[0].encoder.state_dict()
    key = "blocks.0.attn.qkv.weight"
    torch.testing.assert_close(again[key], encoder[key], rtol=0, atol=1e-7)
    assert again["pos_embed.0.weight"].shape == (1, 101, 16)


def test_an_encoder_that_does_not_fit_is_refused_by_what_differs(
    run: Run, small_run: SmallRun
) -> None:
    small_run("reconstruct", "mae")
    refused = {
        "model.depth=1": "to match it, set model.depth=2\n",
        "model.head=gap": "to match it, set model.head=token\n",
        "model=cnn": "needs a Vision Transformer",
        "init_from=nowhere": "no checkpoint at nowhere",
    }
    for change, hint in refused.items():
        arguments = [*SMALL, "data.train_images=100", "init_from=mae", change]
        if change == "model=cnn":
            arguments = [each for each in arguments if not each.startswith("model.")]
        run.fails(hint, "vit-train", *arguments)


def test_what_a_task_cannot_do_is_refused(run: Run) -> None:
    few = ["data.train_images=100", "data.test_images=60"]
    for change, words in {
        "task=reconstruct model.positions=none": "a decoder needs absolute positions",
        "task=reconstruct task.given_rows=3": "there is no setting task.given_rows",
        "task=reconstruct model=resnet": "but model.name=resnet",
        "task=autoregress task.given_rows=8": "leaves nothing to predict",
    }.items():
        run.fails(words, "vit-train", *few, *change.split())
