"""Impossible settings are refused with status 1 and a short message that names them."""

import os
import pickle
from pathlib import Path

import pytest
import torch
from conftest import Run, SmallRun

from vit_train.base.reading import read_json

TRAIN = {
    # numbers out of range
    "data.train_images=9 data.test_images=9 model.patch_size=64 task=reconstruct": "must divide",
    "data.train_images=9 data.test_images=9 model.patch_size=64": "must divide the image size 32",
    "model.embed_dim=130": "model.embed_dim=130 must be a multiple of model.num_heads=4",
    "model.mlp_ratio=0.001": "the MLP has no hidden unit",
    "model.mlp_ratio=nan": "model.mlp_ratio=nan must be a finite number",
    "model.dropout=1": "model.dropout=1.0 must be at least 0 and less than 1",
    "model.positions=learned_2d model.embed_dim=5 model.num_heads=1": "to be a multiple of 2",
    "model.positions=sincos_2d model.embed_dim=6 model.num_heads=2": "to be a multiple of 4",
    "model.positions=none model.positions_at=layers": "use positions_at=stem",
    "task.class_weights=even": "task.class_weights=even must be auto, null, or a list with one",
    "task.class_weights=auto data.sampler=balanced": "choose one of them",
    "optim.lr=0": "optim.lr=0.0 must be greater than 0",
    "optim.min_lr=1": "optim.min_lr=1.0 must be at most optim.lr=0.001",
    "optim.clip_norm=0": "optim.clip_norm=0.0 must be greater than 0, or null",
    "train.epochs=0": "train.epochs=0 must be at least 1",
    "train.patience=2 data.val=none": "train.patience=2 needs validation images: data.val=none",
    "train.ema_decay=1": "train.ema_decay=1.0 must be greater than 0 and less than 1, or null",
    "data.train_images=9 data.test_images=9 data.train_subset=99": "choose at most 8",
    "data.train_images=1 data.test_images=9": "sets the only image apart for validation",
    "data.val_subset=5 data.val=none": "data.val_subset=5 needs validation images",
    "data.train_images=90 data.test_images=9 data.val_subset=10": "choose at most 9",
    "data.cv_folds=5 data.cv_fold=5": "data.cv_fold=5 must be 0 to 4, the last of 5",
    "data.cv_folds=5 data.cv_fold=0 data.val=none": "on a part of the training images, but",
    "data=stl10 data.fold=1 data.cv_folds=5 data.cv_fold=0": "makes its own: choose one of them",
    "data=folder data.root=x data.image_size=null": "data.image_size must be a number",
    "data.train_images=1000000000000": "data.train_images=1000000000000, data.test_images=",
    "data.image_size=1000000": "data.image_size=1000000: 1 image of 1,000,000 by 1,000,000 would",
    "data.test_images=20000000000": "20,000,010,000 images of 32 by 32 would take 122,880 GB",
    "data.train_images=9 data.test_images=9 augment.crop_padding=100000000000": "at most 32",
    # words that are no choice
    "model.activation=relu": "gelu, gelu_tanh",
    "model.positions=rotary": "none, learned, learned_2d, relative",
    "device=cpu precision=fp16": "precision=fp32",
    "optim=lion": "there is no optim=lion: choose from adamw, muon\n",
    "optim.name=lion": "optim.name=lion cannot be set: choose with optim=",
    "augment=stong": "there is no augment=stong: choose from light, none, strong\n",
    "model=huge": "no model=huge: choose from base, cnn, resnet, small, tiny, vit, vit_base_",
    "augment=[light,stong]": "vit-train: there is no augment=stong\n",
    "experiment=imagenet": "vit_tiny_5k",
    # other types
    "train.epochs=abc": "train.epochs: Value 'abc' of type 'str' could not be converted to Int",
    "optim.lr=fast": "optim.lr: Value 'fast' of type 'str' could not be converted to Float",
    "model.dropout=true": "model.dropout: Value 'True' of type 'bool' could not",
    "model.pre_norm=perhaps": "model.pre_norm: Value 'perhaps' is not a valid bool",
    "train.epochs=null": "train.epochs: field 'train.epochs' cannot be null\n",
    "train.epochs=[1,2]": "train.epochs: Value '[1, 2]' of type 'list' could not",
    "device=[cpu]": "device: Cannot convert 'list' to string",
    "model=cnn model.widths=[a]": "model.widths[0]: Value 'a' of type 'str' could not",
    "model=cnn model.widths=9": "model.widths: Invalid value assigned: int is not a ListConfig",
    "epochs=3": "there is no setting epochs: did you mean train.epochs?\n",
    "train.lr=0.1": "there is no setting train.lr: did you mean optim.lr?\n",
    "--epochs 3": "unrecognized arguments: --epochs 3\n",
    "seed=0,1": "To sweep over it, add --multirun to your command line\n",
    "optim=3": "Config group override must be a string or a list. Got int\n",
    "checkpoint=3": "checkpoint: Invalid type assigned: int is not a subclass of CheckpointConfig",
    "model=cnn model.widths=[]": "model.widths=[] must be one or more numbers, each at least 1",
    "model=cnn model.widths=[0]": "model.widths[0]=0 must be at least 1",
    "model.name=cnn": "model.name=cnn cannot be set: choose with model=",
    # names that are none
    "modle.depth=3": "there is no setting modle: did you mean model?",
    "optim.learning_rate=1": "optim.learning_rate",
    "model.drop_rate=0.1": "there is no setting model.drop_rate: did you mean model.dropout?\n",
    "data.img_size=64": "there is no setting data.img_size: did you mean data.image_size?\n",
    "+train.lr=0.1": "there is no setting train.lr: did you mean optim.lr?\n",
    "nothing=1": "there is no setting nothing",
    "+sed=5": "there is no setting sed: did you mean seed?",
    "+model.depth.x=5": "model.depth",
    "+train={epoch:5}": "there is no setting train.epoch: did you mean train.epochs?",
    "+model@more=tiny": "there is no setting more",
    "~train.epochs": "~train.epochs is not a setting: write key=value",
    # what is not there
    "data=folder": "data.root=FOLDER must name the folder",
    "data=folder data.root=nowhere": "nowhere",
    "data=cifar10 data.root=nowhere": "data.download=true",
    "data=cifar10 data.urls=[ftp://example]": "must begin with http:// or https://",
    "data.train_images=9 data.test_images=9 init_from=nowhere": "no checkpoint at nowhere",
    "resume=nowhere": "resume=nowhere: there is no such folder",
    # grammar
    "model.depth=3=4": "model.depth=3=4 cannot be read as key=value",
    "=3": "=3 is not a setting: write key=value",
    "train.epochs 3": "train.epochs is not a setting: write key=value",
    "train.epochs=3 train..epochs=4": "train..epochs",
    "data.root='unclosed": "data.root='unclosed cannot be read as key=value",
}


@pytest.mark.parametrize("arguments", TRAIN)
def test_refused(run: Run, arguments: str) -> None:
    outcome = run("vit-train", "hydra.run.dir=run", *arguments.split())
    assert outcome.status == 1, outcome.out
    assert outcome.err.startswith("vit-train: ") and TRAIN[arguments] in outcome.err, outcome.err
    assert "Traceback" not in outcome.err and outcome.err.count("\n") <= 8, outcome.err
    assert not Path("run/checkpoints").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what the test wants absent")
def test_a_device_that_is_not_there_is_said_with_what_to_do(run: Run) -> None:
    outcome = run("vit-train", "device=cuda")
    assert outcome.status == 1 and outcome.err.startswith("vit-train: ")
    assert "device=cpu" in outcome.err and "Traceback" not in outcome.err


def test_a_file_where_a_folder_should_be_is_said(run: Run) -> None:
    Path("file").write_text("in the way", encoding="utf-8")
    outcome = run("vit-train", "hydra.run.dir=file/run")
    assert outcome.status == 1 and outcome.err.startswith("vit-train: ")
    assert "file" in outcome.err and "Traceback" not in outcome.err


def test_a_path_on_its_own_is_told_what_it_may_be(run: Run) -> None:
    Path("some").mkdir()
    for command, key in (("vit-train", "resume"), ("vit-eval", "ckpt")):
        run.fails(f"did you mean {key}=some?", command, "some")
    Path("some/data").mkdir()
    Path("some/data/few.yaml").write_text(
        "defaults: [shapes]\ntrain_images: 50\n", encoding="utf-8"
    )
    composed = run.succeeds("vit-train", "--config-dir", "some", "data=few", "--cfg", "job")
    assert "train_images: 50" in composed.out


HYDRA_COMMANDS = ("vit-train", "vit-eval", "vit-augment")


@pytest.mark.parametrize("command", HYDRA_COMMANDS)
def test_what_is_endless_has_a_short_message(run: Run, command: str) -> None:
    deep = "is nested too deeply"
    for argument, words in {
        f"device={'[' * 500}{']' * 500}": deep,
        f"device={'{a: ' * 500}0{'}' * 500}": deep,
        f"device={'[' * 3000}": "[…[",
        f"{'x' * 3000}=1": "xxx…",
        f"seed={'9' * 5000}": "Exceeds the limit (4300 digits)",
        f"+model={{a: [{'9' * 5000}]}}": "Exceeds the limit (4300 digits)",
    }.items():
        outcome = run.fails(words, command, argument)
        assert outcome.err.startswith(f"{command}: ") and len(outcome.err) < 600, outcome.err


def test_a_setting_that_is_none_is_named_for_every_command_and_in_files(run: Run) -> None:
    checkpoint = "ckpt=nowhere"
    for command, *arguments, words in (
        ("vit-eval", checkpoint, "+batchsize=3", "batchsize: did you mean batch_size?"),
        ("vit-eval", checkpoint, "+data.rot=x", "data.rot: did you mean data.root?"),
        ("vit-augment", "++image=3", "image: did you mean images?"),
        ("vit-augment", "+augment.flop=true", "augment.flop: did you mean augment.flip?"),
    ):
        outcome = run(command, *arguments)
        assert outcome.status == 1
        assert outcome.err == f"{command}: there is no setting {words}\n"
    Path("some/experiment").mkdir(parents=True)
    Path("some/experiment/own.yaml").write_text(
        "# @package _global_\ntrain: {epoch: 5}\n", encoding="utf-8"
    )
    outcome = run("vit-train", "--config-dir", "some", "experiment=own")
    words = "there is no setting train.epoch: did you mean train.epochs?"
    assert outcome.status == 1 and outcome.err == f"vit-train: In 'experiment/own': {words}\n"


def test_files_of_ones_own_are_told_the_same_and_are_among_the_choices(run: Run) -> None:
    Path("some/experiment").mkdir(parents=True)
    own = Path("some/experiment/own.yaml")
    for content, words in {
        "train: {epochs: abc}\n": "train.epochs: Value 'abc' of type 'str' could not be converted",
        "defaults: [/data/foldr]\n": "there is no data=foldr",
    }.items():
        own.write_text(f"# @package _global_\n{content}", encoding="utf-8")
        outcome = run.fails(words, "vit-train", "--config-dir", "some", "experiment=own")
        assert outcome.err.startswith("vit-train: In 'experiment/own': ")
        assert outcome.err.count("\n") == 1
    for asked, words in (("zzz", "mae_then_classify, own, paper_example,"),):
        run.fails(words, "vit-train", "--config-dir", "some", f"experiment={asked}")


@pytest.mark.parametrize(
    ("command", "argument"),
    [
        ("vit-eval", "data=shapes"),
        ("vit-explain", "+data=shapes"),
        ("vit-predict", "data=3"),
        ("vit-export", "model=tiny"),
    ],
)
def test_a_group_of_the_run_cannot_be_set_afterwards(run: Run, command: str, argument: str) -> None:
    group = argument.strip("+").partition("=")[0]
    error = f"{command}: {group}= cannot be set here: it comes from"
    assert run.fails(error, command, "ckpt=nowhere", argument).err.startswith(error)


def test_data_can_be_set_without_a_group(run: Run) -> None:
    assert "no checkpoint at nowhere" in run("vit-eval", "ckpt=nowhere", "data={root: x}").err


def test_what_is_no_setting_is_said_wherever_it_is_typed(run: Run) -> None:
    Path("x.jpg").write_bytes(b"")
    for command, hint in {
        "vit-augment": "did you mean data.root=x.jpg?",
        "vit-inspect": "did you mean out=x.jpg?",
        "vit-predict": "did you mean images=x.jpg?",
    }.items():
        assert run(command, "x.jpg").err == f"{command}: x.jpg is not a setting: {hint}\n"
    many = ",".join(f"IMG_{number:05}.jpg" for number in range(60))
    outcome = run("vit-predict", "ckpt=nowhere", f"images=[{many}]")
    assert "no checkpoint at nowhere" in outcome.err
    assert "no checkpoint at 0" in run("vit-eval", "ckpt=0").err
    assert "ckpt=null names no checkpoint" in run("vit-eval", "ckpt=null").err
    assert f"no checkpoint at {Path.home()}/nowhere" in run("vit-eval", "ckpt=~/nowhere").err


def test_no_flag_unpickles_a_file(run: Run) -> None:
    Path("run.pickle").write_bytes(pickle.dumps(Opened()))
    for command in HYDRA_COMMANDS:
        words = "--experimental-rerun could run any code"
        run.fails(words, command, "--experimental-rerun", "run.pickle")
    assert not Path("opened").exists()


class Opened:
    """An object that leaves a trace when it is unpickled."""

    def __reduce__(self) -> object:
        return os.mkdir, ("opened",)


def test_a_copy_of_a_checkpoint_is_not_resumed_where_it_lies(run: Run, small_run: SmallRun) -> None:
    """The folder above is not a run's, and what is in it is somebody else's."""
    small_run("interrupted")
    Path("mine/models").mkdir(parents=True)
    Path("run/checkpoints/last.safetensors").rename("mine/models/copy.safetensors")
    Path("mine/metrics.csv").write_text("epoch,acc\n1,0.5\n", encoding="utf-8")
    outcome = run.fails(
        "a run goes on in its own folder", "vit-train", "resume=mine/models/copy.safetensors"
    )
    assert "init_from=mine/models/copy.safetensors" in outcome.err
    assert sorted(path.name for path in Path("mine").rglob("*")) == [
        "copy.safetensors", "metrics.csv", "models",
    ]  # fmt: skip


def test_what_is_legitimately_added_is_taken(run: Run) -> None:
    added = ["+hydra.job.env_set.SOME=1", "++seed=3"]
    assert "seed: 3" in run.succeeds("vit-train", *added, "--cfg", "job").out
    Path("some/extra").mkdir(parents=True)
    Path("some/extra/own.yaml").write_text(
        "# @package _global_\noptim: {lr: 0.5}\n", encoding="utf-8"
    )
    job = ["data.train_images=1", "data.test_images=9", "train.max_minutes=1e-9"]
    outcome = run("vit-train", "--config-dir", "some", "+extra=own", *job)
    assert "the only image apart" in outcome.err  # all that came before was accepted


def test_what_needs_more_memory_than_there_is_is_said_first(run: Run) -> None:
    small = ["data.train_images=60", "data.test_images=20"]
    for command, argument, words in (
        ("vit-eval", "data.image_size=1000000", "data.image_size=1000000: 1 image of 1,000,000"),
        ("vit-augment", "images=1000000000", "images=1000000000, variants=8 make 9,000,000,000 "),
        ("vit-augment", "variants=400", "make 2,406 pictures, but one sheet shows at most 1,000"),
        ("vit-augment", "data.image_size=1000000", "data.image_size=1000000: 1 image of"),
        (
            "vit-augment",
            "augment.crop_padding=1000000000",
            "augment.crop_padding=1000000000 must be at most 32",
        ),
    ):
        outcome = run.fails(
            words, command, *(["ckpt=x"] if command == "vit-eval" else small), argument
        )
        assert outcome.err.startswith(f"{command}: ") and outcome.err.count("\n") == 1


def test_only_training_sweeps(run: Run) -> None:
    for command in ("vit-eval", "vit-predict", "vit-explain", "vit-export"):
        run.fails("--multirun is for vit-train alone", command, "-m", "ckpt=a,b", "images=x.png")
    assert not list(Path().iterdir())


def test_what_belongs_to_another_choice_is_said(run: Run, small_run: SmallRun) -> None:
    small_run("finished")
    for arguments, words in {
        "vit-train task.teacher=run": "task.teacher here: task=distill has it",
        "vit-train experiment=heads model.depht=3": "there is no setting model.depht",
        "vit-train model=cnn model.embed_dim=32": "model.embed_dim here: model=vit has it",
        "vit-train extend=run/checkpoints/best.safetensors train.epochs=1": "name the run's folder",
        "vit-train resume=run/config.yaml": "this is not a checkpoint: name the run's folder",
        "vit-train hydra.run.dir=run/config.yaml": "run/config.yaml: File exists",
        "vit-eval ckpt=run data.root=run": "come from no folder; add data.name=folder",
        "vit-eval ckpt=run,run": "To use it as a list, use key=[value1,value2]",
        "vit-eval ckpt=[run,nowhere]": "no checkpoint at nowhere",
        "vit-eval ckpt=[run,run]": "best.safetensors more than once",
        "vit-predict ckpt=run images=nowhere.png": "there is no such file or folder",
    }.items():
        outcome = run.fails(words, *arguments.split())
        assert "Traceback" not in outcome.err and "Errno" not in outcome.err
    assert not Path("run/eval-test").exists()


def test_a_results_file_holds_the_command_as_it_was_typed(run: Run, small_run: SmallRun) -> None:
    small_run("finished", "my runs/one")
    run.succeeds("vit-eval", "ckpt=my runs/one")
    assert "my runs/one" in read_json(Path("my runs/one/eval-test/results.json"))["command"]


def test_a_config_of_ones_own_must_build_on_the_packages(run: Run) -> None:
    own = ["--config-dir", "some", "--config-name", "config"]
    run.fails("--config-name is for vit-train alone", "vit-eval", *own)
    Path("some").mkdir()
    config = Path("some/config.yaml")
    for content in ("device: cpu\n", "device: cpu\nresume: null\n"):  # as a run's config.yaml
        config.write_text(content, encoding="utf-8")
        outcome = run.fails("begin with 'defaults: [train, _self_]'", "vit-train", *own)
        assert "the command in its summary.json" in outcome.err
        assert outcome.err.startswith("vit-train: --config-name=config: ")
    run.fails("vit-train: there is no confg.yaml\n", "vit-train", *own[:3], "confg")
    config.write_text("defaults: [train, _self_]\ndevice: cuda\n", encoding="utf-8")
    assert "device: cuda" in run.succeeds("vit-train", *own, "--cfg", "job").out
