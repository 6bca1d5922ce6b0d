"""Impossible settings are refused with status 1 and a short message that names them."""

import os
import pickle
import re
import shlex
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import yaml
from conftest import SMALL, Run, SmallRun, Started
from omegaconf import DictConfig, OmegaConf

from vit_train.base.reading import read_json
from vit_train.commands.command import described
from vit_train.config import tools as after
from vit_train.config.data import FolderConfig, ShapesConfig, TableConfig
from vit_train.config.fields import LARGEST, LARGEST_SEED, Settings, builder, setting
from vit_train.config.run import CHOSEN_BY_NAME, TrainConfig, readable, with_defaults
from vit_train.config.tasks import DistillConfig
from vit_train.config.training import MuonConfig, OptimConfig
from vit_train.data.shapes import load_shapes

FEW = "data.train_images=60 data.test_images=20"
TRAIN = {
    # numbers out of range
    "data.train_images=9 data.test_images=9 model.patch_size=64 task=reconstruct": "must divide",
    "data.train_images=9 data.test_images=9 model.patch_size=64": "must divide the image size 32",
    "model.embed_dim=1000000000000 model.num_heads=1000000000000": "at most 10000",
    "model.embed_dim=130": "model.embed_dim=130 must be a multiple of model.num_heads=4",
    "model.stem=conv model.patch_overlap=1": "model.stem=conv needs model.patch_overlap=0",
    "model.stem=conv model.patch_size=6": "needs model.patch_size=2, 4, 8, 16 or 32",
    "data=folder data.root=x data.mean=[1] data.std=[1,2]": "must both have one number per channel",
    "model.mlp_ratio=0.001": "the MLP would have no hidden units",
    "model.mlp_ratio=nan": "model.mlp_ratio=nan must be a finite number",
    "model.dropout=1": "model.dropout=1.0 must be at least 0 and less than 1",
    "task=reconstruct task.mask_ratio=0": "task.mask_ratio=0.0 must be greater than 0",
    "task=reconstruct task.mask_ratio=1": "task.mask_ratio=1.0 must be greater than 0",
    f"{FEW} task=reconstruct task.mask_ratio=0.999": "leaves 0 of 64 patches visible",
    f"{FEW} model.positions=learned_2d model.embed_dim=5 model.num_heads=1": (
        "to be a multiple of 2"
    ),
    f"{FEW} model.positions=sincos_2d model.embed_dim=6 model.num_heads=2": "to be a multiple of 4",
    f"{FEW} model.positions=none model.positions_at=layers": "use model.positions_at=stem",
    **{f"task.class_weights={weights}": "must be auto, null, or a list with one positive number"
       for weights in ("even", "3", "[]", "[1,0]", "[1,-2.0]", "[1,true]", "[1,x]")},
    f"{FEW} task.class_weights=[1,2,3]": "must have 10 numbers, not 3: one per class",
    "task.class_weights={0:1}": "there is no setting task.class_weights.0",
    "task.class_weights=auto data.sampler=balanced": "choose one of them",
    "checkpoint.metric=f1": "must be one of: auto, acc, balanced_acc",
    f"{FEW} task=reconstruct checkpoint.metric=acc": "acc is not a metric of task=reconstruct",
    f"{FEW} train.freeze=encoder": "with pretrained weights: set init_from=RUN",
    f"{FEW} train.freeze=encoder model=cnn": "train.freeze=encoder needs a Vision Transformer",
    "optim.lr=0": "optim.lr=0.0 must be greater than 0",
    "optim.min_lr=1": "optim.min_lr=1.0 must be at most optim.lr=0.001",
    "optim.clip_norm=0": "optim.clip_norm=0.0 must be greater than 0, or null",
    "train.epochs=0": "train.epochs=0 must be at least 1",
    "train.patience=2 data.val=none": "train.patience=2 needs validation images, but data.val=none",
    "train.ema_decay=1": "train.ema_decay=1.0 must be greater than 0 and less than 1, or null",
    "data.train_images=9 data.test_images=9 data.train_subset=99": "choose at most 8",
    "data.train_images=1 data.test_images=9": "data.val_fraction=0.1 of 1 image leaves no image",
    "data.train_images=9 data.test_images=9 data.test_subset=10": "data.test_subset=10 is more",
    "data.train_images=9 data.test_images=9 data.cv_folds=10 data.cv_fold=0": (
        "data.cv_folds=10 needs at least 10 images or groups, but there are only 9"
    ),
    "data.cv_folds=5 data.cv_fold=5": "data.cv_fold=5, data.cv_folds=5: set data.cv_folds to",
    "data.cv_folds=5 data.cv_fold=0 data.val=none": "takes validation images from the training",
    "data.train_images=1000000000000": "data.train_images=1000000000000, data.test_images=",
    "data.image_size=1000000": "12,000 images of 1,000,000 by 1,000,000 pixels would",
    "data.test_images=20000000000": "images of 32 by 32 pixels would take 122,880 GB",
    "data.train_images=9 data.test_images=9 augment.crop_padding=100000000000": "at most 32",
    # models that are too large
    f"{FEW} model.embed_dim=200000": "choose a smaller model",
    "model.depth=10000000": "must be at least 1 and at most 1000",
    "model.patch_size=1 data.image_size=200 data.train_images=2 data.test_images=1": (
        "more than 32,768 patches of 1"
    ),
    "data.train_images=20 data.test_images=10 model.kernels=scratch "
    "model.embed_dim=1024 model.num_heads=1024 model.patch_size=1 data.image_size=180": "larger p",
    "data.train_images=20 data.test_images=10 model=cnn model.widths=[1000000,1000000]": (
        "model.widths=[1000000,1000000]"
    ),
    "task=reconstruct task.decoder_depth=1000000": "at most 1000, or null",
    # what does not go together
    f"{FEW} model=cnn optim=muon": "use optim=adamw",
    f"{FEW} model=cnn model.widths=[1,2,3,4,5,6,7]": "halve the image more often than its size",
    f"{FEW} model=cnn optim.layer_decay=0.5": "optim.layer_decay needs a Vision Transformer",
    f"{FEW} task=reconstruct optim.head_lr_scale=2": "head_lr_scale=2.0 needs a model with a head",
    f"{FEW} task=autoregress model.stem=conv": "set model.stem=patches",
    f"{FEW} task=autoregress model.patch_overlap=1": "set model.stem=patches",
    f"{FEW} model.patch_dropout=0.5 model.positions=relative": "needs absolute positions",
    f"{FEW} model.patch_dropout=0.5 model.positions=rotary_2d": "needs absolute positions",
    # data that cannot be drawn
    "data.train_images=0": "data.train_images=0 must be at least 1",
    f"data.image_size={10**30}": "must be a positive number of pixels",
    "data.image_size=8": "data.image_size=8 must be one number of at least",
    "data.num_classes=1": "data.num_classes=1 must be at least",
    "data.num_classes=11": "data.num_classes=11 must be at least",
    # splits that are none
    "data.cv_fold=0": "data.cv_fold=0, data.cv_folds=null: set data.cv_folds to",
    "data.cv_folds=5": "data.cv_fold=null, data.cv_folds=5: set data.cv_folds to",
    "data.cv_folds=1 data.cv_fold=0": "data.cv_folds=1 must be at least 2",
    "data.cv_folds=5 data.cv_fold=-1": "data.cv_fold=-1 must be at least 0",
    "data.cv_folds=5 data.cv_fold=1 data.val=test": "instead of data.val=test",
    "data.sampler=even": "data.sampler=even must be one of: shuffled, balanced",
    # words that are no choice
    "model.stem=other": "model.stem=other must be one of",
    f"{FEW} model.activation=tanh": "gelu, gelu_tanh, relu, silu, swiglu",
    f"{FEW} optim.schedule=cosin": "optim.schedule=cosin must be one of: cosine, linear, wsd",
    f"{FEW} model.positions=rotary": "none, learned, learned_2d, relative",
    "device=cpu precision=fp16": "precision=fp32",
    "device=cpu precision=tf32": "precision=tf32 needs a CUDA GPU",
    "optim=lion": "there is no optim=lion: choose from adamw, muon, sgd",
    "optim.name=lion": "optim.name=lion cannot be set: use optim=NAME",
    "augment=stong": "there is no augment=stong: choose from light, none, strong\n",
    "model=huge": "there is no model=huge: choose from base, cnn",
    "augment=[light,stong]": "vit-train: there is no augment=stong\n",
    "experiment=imagenet": "vit_tiny_5k",
    # other types
    "train.epochs=abc": "train.epochs: Value 'abc' of type 'str' could not be converted to Int",
    "optim.lr=fast": "optim.lr: Value 'fast' of type 'str' could not be converted to Float",
    "model.dropout=true": "model.dropout: Value 'True' of type 'bool' could not",
    "model.pre_norm=perhaps": "model.pre_norm: Value 'perhaps' is not a valid bool",
    "train.epochs=[1,2]": "train.epochs: Value '[1, 2]' of type 'list' could not",
    "device=[cpu]": "device: Cannot convert 'list' to string",
    "model=cnn model.widths=[a]": "model.widths[0]: Value 'a' of type 'str' could not",
    "trackers=wandb": "trackers: must be a list: trackers=[A,B]",
    "model=cnn model.widths=9": "model.widths: must be a list: model.widths=[A,B]",
    **{f"{word}=1": f"there is no setting {word}: did you mean {ours}?\n"
       for word, ours in {
           "epochs": "train.epochs",
           "batch_size": "train.batch_size",
           "train.lr": "optim.lr",
           "learning_rate": "optim.lr",
           "data.seed": "seed",
           "train.resume": "resume",
           "gradient_accumulation_steps": "train.micro_batch",
           "amp": "precision",
           "train.early_stopping": "train.patience",
           "augment.mixup": "augment.mixup_alpha",
           "max_epochs": "train.epochs",
           "optimizer": "optim",
           "model.heads": "model.num_heads",
           "data.cv": "data.cv_fold or data.cv_folds",
       }.items()},
    "num_workers=4": "there is no setting num_workers: --help lists the settings\n",
    "data=cifar10 data.train_images=9": "only with data=shapes: did you mean data.train_subset?\n",
    "--epochs 3": "unrecognized arguments: --epochs 3 (settings are written as key=value",
    "seed=0,1": "To sweep over it, add --multirun to your command line\n",
    "augment=null": "augment= cannot be null: leave it out, or choose a name",
    "optim=3": "Config group override must be a string or a list. Got int\n",
    "checkpoint=3": "checkpoint: Invalid type assigned: int is not a subclass of CheckpointConfig",
    "model=cnn model.widths=[]": "model.widths must be a list of 1 to 50 numbers, each at least 1",
    "model=cnn model.widths=[0]": "model.widths[0]=0 must be at least 1",
    "model.name=cnn": "model.name=cnn cannot be set: use model=NAME",
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
    "device=cuda": "PyTorch finds 0 CUDA GPUs on this machine: use device=cpu",
    "data=cifar10 data.root=nowhere": "data.download=true",
    "data.train_images=9 data.test_images=9 init_from=nowhere": "no checkpoint at nowhere",
    # grammar
    "model.depth=3=4": "model.depth=3=4 cannot be read as key=value",
    "=3": "=3 is not a setting: write key=value",
    "train.epochs 3": "train.epochs is not a setting: write key=value",
    "train.epochs=3 train..epochs=4": "train..epochs",
    "data.root='unclosed": "data.root='unclosed cannot be read as key=value",
}  # fmt: skip


def refused(run: Run, words: str, command: str, *arguments: str) -> None:
    """With these words in a few lines that begin with the command's name."""
    outcome = run.fails(words, command, *arguments)
    assert outcome.err.startswith(f"{command}: ") and outcome.err.count("\n") <= 8, outcome.err
    assert len(outcome.err) < 3000 and "evaluating" not in outcome.out


@pytest.mark.parametrize("arguments", TRAIN)
def test_vit_train_refuses_impossible_settings(run: Run, arguments: str) -> None:
    refused(run, TRAIN[arguments], "vit-train", "hydra.run.dir=run", *arguments.split())
    assert not Path("run").exists()


OWN = "vit-train --config-dir some"
NEW = f"vit-train {' '.join(SMALL)}"
MANY = ",".join(f"IMG_{number:05}.jpg" for number in range(60))
DEEP, LONG = "is nested too deeply", "Exceeds the limit (4300 digits)"
# In a folder with two finished runs, a file, an image and config files of one's own: see `place`.
TYPED = {
    "vit-train hydra.run.dir=file/run": "file",
    "vit-train some": "did you mean resume=some?",
    "vit-eval some": "did you mean ckpt=some?",
    "vit-augment x.jpg": "x.jpg is not a setting: did you mean data.root=x.jpg?\n",
    "vit-inspect x.jpg": "x.jpg is not a setting: did you mean out=x.jpg?\n",
    "vit-predict run x.jpg": "run is not a setting: did you mean ckpt=run?\n",
    "vit-predict x.jpg": "x.jpg is not a setting: did you mean images=x.jpg?\n",
    # names that are none, typed and in files
    "vit-eval ckpt=nowhere +batchsize=3": "no setting batchsize: did you mean batch_size?\n",
    "vit-eval ckpt=nowhere +data.rot=x": "no setting data.rot: did you mean data.root?\n",
    "vit-augment ++image=3": "there is no setting image: did you mean images?\n",
    "vit-augment +augment.flop=true": "augment.flop: did you mean augment.flip?\n",
    f"{OWN} experiment=name": "In 'experiment/name': there is no setting train.epoch: did you mean",
    f"{OWN} experiment=type": "train.epochs: Value 'abc' of type 'str' could not be converted",
    f"{OWN} experiment=open": "expected ',' or '}'",
    f"{OWN} experiment=part": "In 'experiment/part': the file of a recipe must begin with '# @pack",
    "vit-train --config-dir nowhere": "--config-dir=nowhere: there is no such folder\n",
    f"{OWN} experiment=choice": "there is no data=foldr",
    f"{OWN} experiment=zzz": "mae_then_classify, name, open, paper_example, part,",
    # what comes from the checkpoint
    "vit-eval ckpt=nowhere data=shapes": "data= cannot be set here: did you mean data.name=",
    "vit-explain ckpt=nowhere +data=shapes": "vit-explain: data= cannot be set here",
    "vit-predict ckpt=nowhere data=3": "vit-predict: data= cannot be set here",
    "vit-export ckpt=nowhere model=tiny": "vit-export: model= cannot be set here",
    "vit-eval ckpt=nowhere 'data={root: x}'": "no checkpoint at nowhere",
    "vit-eval ckpt=0": "no checkpoint at 0",
    "vit-eval ckpt=null": "no checkpoint at None",
    "vit-eval ckpt=~/nowhere": f"no checkpoint at {Path.home()}/nowhere",
    "vit-eval 'ckpt=[~/nowhere,run]'": f"no checkpoint at {Path.home()}/nowhere",
    "vit-eval ckpt=checkpoints/best.safetensors": "best.safetensors, did you mean some?\n",
    # more memory than there is
    f"vit-augment {FEW} images=1000000000": "images=1000000000 must be at least 1 and at most 30",
    f"vit-augment {FEW} variants=400": "variants=400 must be at least 1 and at most 30",
    "vit-eval ckpt=run data.image_size=1000000": "have more than 32,768 patches of 4",
    f"vit-augment {FEW} data.image_size=1000000": "data.image_size=1000000: 80 images of",
    f"vit-augment {FEW} augment.crop_padding=1000000000": "must be at most 32",
    # a group that becomes a number
    "vit-train train=${seed} train.epochs=1": "Unexpected type for root: int",
    # only training sweeps, and resumes, and has configs of one's own
    "vit-eval -m ckpt=a,b": "--multirun is only for vit-train",
    "vit-check -m": "--multirun is only for vit-train",
    "vit-eval --config-dir some --config-name config": "--config-name is only for vit-train",
    f"{OWN} --config-name confg": "vit-train: there is no config file confg.yaml\n",
    # what belongs to another choice
    "vit-train task.teacher=run": "the setting task.teacher exists only with task=distill",
    "vit-train experiment=heads model.depht=3": "there is no setting model.depht",
    "vit-train model=cnn model.embed_dim=32": "model.embed_dim exists only with model=vit",
    "vit-train extend=run/checkpoints/best.safetensors train.epochs=1": "name the folder of a",
    "vit-train config=run fork=run": "fork= and config= cannot be combined",
    "vit-train resume=run extend=run": "resume= and extend= cannot be combined",
    "vit-train resume=run hydra.run.dir=x": "hydra.run.dir=x has no effect here",
    "vit-train hydra.sweep.dir=x": "are only for sweeps: add -m",
    "vit-train hydra/launcher=basic": "hydra/launcher=basic has no effect here",
    "vit-train seed=auto experiment=quickstart": "two combinations of settings, but this sweep has",
    "vit-train resume=run/config.yaml": "this is not a checkpoint in a run's checkpoints/: name",
    "vit-train hydra.run.dir=run/config.yaml": "run/config.yaml: File exists",
    "vit-eval ckpt=run data.root=run": "has no effect, because this run's images are generated",
    "vit-eval ckpt=run,run": "To use it as a list, use key=[value1,value2]",
    "vit-eval ckpt=[run,nowhere]": "no checkpoint at nowhere",
    "vit-predict ckpt=run images=nowhere.png": "there is no such file or folder",
    # what is no checkpoint
    "vit-eval": "ckpt= is missing. The model: a run's folder (its best checkpoint), a checkpoint",
    "vit-eval ckpt=file": "damaged",
    "vit-eval ckpt=x.jpg": "damaged",
    "vit-eval ckpt=run/config.yaml": "damaged",
    "vit-eval ckpt=some": "no checkpoints/best.safetensors",
    "vit-eval ckpt=builtin:imagenet": "there is no builtin:imagenet",
    f"vit-predict ckpt=nowhere images=[{MANY}]": "no checkpoint at nowhere",
    "vit-results nothing": "nothing does not exist",
    # what this checkpoint cannot do
    "vit-eval ckpt=run data.image_size=33": "must divide the image size 33",
    "vit-eval ckpt=run out=/proc/evaluation": "/proc/evaluation: ",
    "vit-eval ckpt=[run]": "ckpt=[A,B,…] must name 2 to 8 checkpoints",
    "vit-eval ckpt=[run,run] tta=flip": "and foreign= work with one checkpoint only",
    "vit-eval ckpt=mae tta=flip": "classifiers",
    "vit-eval ckpt=mae robustness=true": "classifiers",
    "vit-eval ckpt=[mae,run]": "only models that predict classes or tags",
    "vit-export ckpt=mae format=torch": "only classifiers can be exported",
    "vit-export ckpt=run format=timm normalize=false": "format=timm never normalizes",
    "vit-eval ckpt=[run,builtin:cifar10]": "their classes differ",
    "vit-eval ckpt=run weights=ema": "this run kept no moving average of the weights",
    "vit-predict ckpt=mae images=x.jpg": "task=reconstruct does not classify images",
    "vit-predict ckpt=mae images=x.jpg out=a.txt": "a file name that ends in .csv or .jsonl",
    "vit-train resume=run checkpoint.metric=loss": "cannot change checkpoint.metric",
    "vit-train config=run experiment=mae": "config= and experiment= cannot be combined",
    "vit-train extend=run experiment=mae": "extend= and experiment= cannot be combined",
    "vit-train config=nowhere": "nowhere cannot be read: ",
    "vit-train config=some/experiment/part.yaml": "it states no model. Settings are read from",
    "vit-results run --baseline depth=9": "--baseline=depth=9 matches 0 rows, but must match one",
    "vit-explain ckpt=run method=attention layer=3": "layer=3: the model has layers 1 to 2",
    "vit-explain ckpt=run method=attention layer=0": "layer=0: the model has layers 1 to 2",
    "vit-explain ckpt=run layer=1": "layer=1 is only for method=attention",
    "vit-explain ckpt=run target=square method=rollout": "method=rollout draws the same map for",
    "vit-explain ckpt=run target=1.10": "target=1.10 is not a class of the model",
    "vit-explain ckpt=run target=\"'null'\"": "target=null is not a class of the model",
    "vit-predict ckpt=run images=[1.10,true]": "1.10",
    "vit-explain ckpt=run target=cat": "target=cat is not a class of the model: choose from ",
    "vit-explain ckpt=run method=magic": "must be one of: relevance, rollout, attention",
    "vit-explain ckpt=run images=nowhere": "images=nowhere: there is no such file or folder",
    "vit-explain ckpt=run images=x.jpg": "cannot read any of the images",
    "vit-explain ckpt=mae layer=7": "layer=7: the decoder has layers 1 to",
    "vit-explain ckpt=mae method=rollout": "method=, score= and target= are for classifiers",
    "vit-explain ckpt=run html=page.html images=x.jpg layer=1": "leave out images=, layer=",
    "vit-explain ckpt=run score=9 target=square": "is for maps of the predicted class",
    "vit-predict ckpt=run images=~nobody.jpg": "images=~nobody.jpg: there is no such file",
    "vit-explain ckpt=run html=page.htm": "html=page.htm must be a file name that ends in .html",
    "vit-explain ckpt=mae html=page.html": "html= needs a Vision Transformer that classifies",
    "vit-explain ckpt=builtin:cifar10 html=page.html": "cannot read CIFAR-10",
    # what an encoder or a teacher cannot do
    f"vit-train {FEW} task=reconstruct model.positions=none": "a decoder needs absolute positions",
    f"vit-train {FEW} task=reconstruct model.positions=relative": "needs absolute positions",
    f"vit-train {FEW} task=reconstruct task.given_rows=3": "the setting task.given_rows exists",
    f"vit-train {FEW} task=reconstruct model=resnet": "but model.name=resnet",
    f"vit-train {FEW} task=autoregress task.given_rows=8": "leaves nothing to predict",
    f"{NEW} init_from=mae model.depth=1": "to match it, set model.depth=2\n",
    f"{NEW} init_from=mae model.head=gap": "to match it, set model.head=token\n",
    f"vit-train {FEW} init_from=mae model=cnn": "needs a Vision Transformer",
    f"{NEW} task=distill": "task.teacher= is missing. The teacher: a run (its folder",
    f"{NEW} task=distill task.teacher=mae": "task=reconstruct does not classify images",
    f"{NEW} task=distill task.teacher=nowhere": "no checkpoint at nowhere",
    f"vit-train {FEW} task=distill task.teacher=run task.hint=1 model=cnn": "task.hint=1.0 needs a",
    f"{NEW} task=distill task.teacher=builtin:cifar10": "the teacher's classes are airplane",
    f"{NEW} task=distill task.teacher=run data.image_size=40": "pixels: set data.image_size=32",
    # a model that cannot be described
    "vit-inspect data.image_size=33": "must divide the image size 33",
    "vit-inspect data.image_size=0": "data.image_size=0 must be a positive number of pixels",
    "vit-inspect data.image_size=4096": "more than 32,768 patches of 4",
    "vit-inspect out=table.txt": "must be a file name that ends in .png or .pdf",
    "vit-inspect model.positions=rotary": "must be one of: none, learned",
    "vit-inspect model.depth=100000000": "must be at least 1 and at most 1000",
    "vit-inspect data=folder data.root=photos": "does not load the images of data=folder: set",
    "vit-inspect resume=run": "resume= is only for vit-train: vit-inspect describes new models",
    "vit-check fork=run": "fork= is only for vit-train",
    **{f"{command} --experimental-rerun run.pickle": "--experimental-rerun could run arbitrary code"
       for command in ("vit-train", "vit-eval")},
    **{f"{command} '{argument}'": words
       for command in ("vit-train", "vit-eval")
       for argument, words in {
           f"device={'[' * 500}{']' * 500}": DEEP,
           f"device={'{a: ' * 500}0{'}' * 500}": DEEP,
           f"device={'[' * 3000}": "[…[",
           f"{'x' * 3000}=1": "xxx…",
           f"seed={'9' * 5000}": LONG,
           f"+model={{a: [{'9' * 5000}]}}": LONG,
       }.items()},
}  # fmt: skip


class Opened:
    """An object that leaves a trace when it is unpickled."""

    def __reduce__(self) -> object:
        return os.mkdir, ("opened",)


@pytest.fixture
def place(run: Run, small_run: SmallRun) -> None:
    small_run("finished")
    small_run("reconstruct", "mae")
    Path("x.jpg").touch()
    Path("file").write_text("in the way", encoding="utf-8")
    Path("run.pickle").write_bytes(pickle.dumps(Opened()))
    for name, content in {
        "experiment/name": "# @package _global_\ntrain: {epoch: 5}\n",
        "experiment/type": "# @package _global_\ntrain: {epochs: abc}\n",
        "experiment/open": "# @package _global_\ntrain: {epochs: 1\n",
        "experiment/part": "train: {epochs: 1}\n",
        "experiment/choice": "# @package _global_\ndefaults: [/data/foldr]\n",
        "data/few": "defaults: [shapes]\ntrain_images: 50\n",
        "extra/own": "# @package _global_\noptim: {lr: 0.5}\n",
        "model/own": "defaults: [tiny]\ndepth: 3\n",
        "config": "device: cpu\nresume: null\n",  # as a run's config.yaml
    }.items():
        Path("some", name).parent.mkdir(parents=True, exist_ok=True)
        Path(f"some/{name}.yaml").write_text(content, encoding="utf-8")


@pytest.mark.parametrize("typed", TYPED, ids=lambda typed: typed[:60])
@pytest.mark.usefixtures("place")
def test_every_command_refuses_impossible_settings(run: Run, typed: str) -> None:
    refused(run, TYPED[typed], *shlex.split(typed))
    for pattern in ("opened", "outputs", "positions.png", "*/eval-*"):
        assert not list(Path().glob(pattern))


@pytest.mark.usefixtures("place")
def test_own_presets_extend_the_built_in_ones(run: Run) -> None:
    own = ["vit-train", "--config-dir", "some"]
    run.says("train_images: 50", *own, "data=few", "--cfg", "job")
    run.says("seed: 3", "vit-train", "+hydra.job.env_set.SOME=1", "++seed=3", "--cfg", "job")
    run.says("lr: 0.5", *own, "+extra=own", "--cfg", "job")
    config = Path("some/config.yaml")
    for content in ("device: cpu\n", config.read_text(encoding="utf-8")):
        config.write_text(content, encoding="utf-8")
        outcome = run.fails("file of --config-name=config must", *own, "--config-name", "config")
        assert "begin with 'defaults: [train, _self_]'" in outcome.err
        assert "To repeat a run, use config=" in outcome.err
    config.write_text("defaults: [train, _self_]\ndevice: cuda\n", encoding="utf-8")
    run.says("device: cuda", *own, "--config-name", "config", "--cfg", "job")


def test_a_checkpoint_outside_a_run_is_not_resumed(run: Run, small_run: SmallRun) -> None:
    """The folder above is not a run's, and what is in it is somebody else's."""
    small_run("interrupted")
    Path("mine/models").mkdir(parents=True)
    Path("run/checkpoints/last.safetensors").rename("mine/models/copy.safetensors")
    Path("mine/metrics.csv").write_text("epoch,acc\n1,0.5\n", encoding="utf-8")
    copy = "mine/models/copy.safetensors"
    run.fails(f"init_from={copy}", "vit-train", f"resume={copy}")
    left = sorted(path.name for path in Path("mine").rglob("*"))
    assert left == ["copy.safetensors", "metrics.csv", "models"]


def test_a_results_file_contains_the_command(run: Run, small_run: SmallRun) -> None:
    small_run("finished", "my runs/one")
    run.succeeds("vit-eval", "ckpt=my runs/one")
    assert "my runs/one" in read_json(Path("my runs/one/eval-test/results.json"))["command"]


@pytest.mark.parametrize(
    "arguments, name",
    [
        ("", "shapes-tiny"),
        ("task=reconstruct", "shapes-tiny-reconstruct"),
        ("data=cifar10 model=small data.root=x", "cifar10-small"),
        ("data=folder data.root=my/pets", "pets-tiny"),
        ("data=folder \"data.root='a b'\"", "a_b-??????-tiny"),
        ("name=..", "_-??????"),
        ("model=cnn data=cifar10", "cifar10-cnn"),
        ("experiment=mae", "mae"),
        ("experiment=[quickstart,paper_example]", "shapes-tiny"),
        ("extend=runs/first", "first-extended"),
        ("name=0.10", "0.10"),
        ("name=", "shapes-tiny"),
    ],
)
def test_a_run_is_named_after_its_choices(
    run: Run, started: Started, arguments: str, name: str
) -> None:
    Path("checkpoints").mkdir()  # of another program
    run.succeeds("vit-train", *shlex.split(arguments))
    assert started[0][1].match(f"outputs/{name}/20??-??-??_??-??-??")


@pytest.mark.parametrize(
    "arguments",
    [
        "seed=0,1 model=cnn --multirun device=cpu",
        "seed=0,1 --config-dir some -m model=own",
        "-m seed=0,1 --config-dir=some model=own",
    ],
)
@pytest.mark.usefixtures("place")
def test_flags_of_a_sweep_may_stand_anywhere(run: Run, started: Started, arguments: str) -> None:
    run.succeeds("vit-train", *arguments.split())
    assert [folder.name for _, folder in started] == ["seed_0", "seed_1"]
    assert all(folder.parents[1] == Path("outputs/multirun").absolute() for _, folder in started)


@pytest.mark.parametrize(
    "arguments",
    [
        "data.train_images=1 data.test_images=9",
        "data.train_images=9 data.test_images=9 experiment=quickstart model.patch_size=5",
        "model.num_heads=3",
    ],
)
def test_a_start_that_is_refused_leaves_no_folder(run: Run, arguments: str) -> None:
    assert run("vit-train", *arguments.split()).status in (1, 2)
    assert list(Path().iterdir()) == []
    for folder in ("outputs/kept", "mine"):
        Path(folder).mkdir(parents=True)
    for place in ([], ["hydra.run.dir=mine/run"]):
        assert run("vit-train", *arguments.split(), *place).status in (1, 2)
    left = {path.as_posix() for path in Path().rglob("*")}
    assert left == {"outputs", "outputs/kept", "mine"}


NEEDED: dict[type, dict[str, Any]] = {
    FolderConfig: {"root": "x"},
    TableConfig: {"file": "x.csv"},
    DistillConfig: {"teacher": "x"},
}


def all_kinds() -> list[type[Settings]]:
    """The classes of all commands' settings, and of the parts and choices in them."""
    groups = [kind for choices in CHOSEN_BY_NAME.values() for kind in choices.values()]
    asked, found = [TrainConfig, *groups, *vars(after).values()], []
    for kind in asked:
        if isinstance(kind, type) and is_dataclass(kind) and kind not in found:
            found.append(kind)
            asked += [each for each in get_type_hints(kind).values() if is_dataclass(each)]
    return found


def test_each_number_has_bounds() -> None:
    names = set()
    for kind in all_kinds():
        config, hints = kind(**NEEDED.get(kind, {})), get_type_hints(kind)
        for name in (each.name for each in fields(kind)):
            types = {hints[name], *get_args(hints[name])}
            if not types & {int, float, list[int], list[float]}:
                continue
            listed, is_int = {list[int], list[float]} & types, {int, list[int]} & types
            key = f"{kind.group}.{name}".removeprefix(".")
            names.add(key)
            for value in (10**400, 2**63, -(2**63)) if is_int else (1e300, -1e300, float("inf")):
                said = re.escape(f"{key}{'[1]' if listed else ''}={value} must be ")
                with pytest.raises(ValueError, match=f"^{said}"):
                    replace(config, **{name: [1, value] if listed else value})
    assert len(names) > 55
    assert {"seed", "train.epochs", "model.widths", "data.std"} <= names
    assert {"batch_size", "images", "task.given_rows"} <= names


@pytest.mark.parametrize(
    ("bounds", "right", "wrong", "words"),
    [
        ({"at_least": 1}, [1, None], 0, "some.value=0 must be at least 1, or null"),
        ({"above": 0}, [0.5, None], 0, "some.value=0 must be greater than 0, or null"),
        ({"at_most": 3}, [3, -9], 4, "some.value=4 must be at most 3, or null"),
        ({"below": 1}, [0.9], 1, "some.value=1 must be less than 1, or null"),
        ({"at_least": 0, "below": 1}, [0], 1, "must be at least 0 and less than 1, or null"),
        ({"choices": ("a", True)}, ["a", True], "b", "some.value=b must be one of: a, true, or"),
        ({"above": 0}, [[1, 2]], [1, 0], "some.value[1]=0 must be greater than 0"),
        ({}, [1e38, -1e38], float("nan"), "some.value=nan must be a finite number, or null"),
        (
            *({"at_most": LARGEST_SEED}, [LARGEST_SEED], LARGEST_SEED + 1),
            f"some.value={LARGEST_SEED + 1} must be at most {LARGEST_SEED}, or null",
        ),
        ({}, [LARGEST, -LARGEST], LARGEST + 1, f"must be between {-LARGEST} and {LARGEST}, or"),
    ],
)
def test_a_value_outside_its_bounds_is_refused(
    bounds: dict[str, Any], right: list[Any], wrong: object, words: str
) -> None:
    namespace: dict[str, Any] = {"__annotations__": {"value": int | None}, "group": "some"}
    namespace["value"] = setting(None, "A value.", **bounds)
    kind: Any = dataclass(type("Bounded", (Settings,), namespace))
    assert [kind(value).value for value in right] == right
    with pytest.raises(ValueError, match=re.escape(words)):
        kind(wrong)


def test_a_subclass_builds_what_its_base_builds() -> None:
    class Own(ShapesConfig):
        pass

    assert builder(Own()) is load_shapes
    with pytest.raises(ValueError, match="TrainConfig builds nothing"):
        builder(TrainConfig())
    with pytest.raises(ValueError, match="optim must be one of: AdamWConfig, MuonConfig,"):
        readable(with_defaults(TrainConfig(optim=OptimConfig(lr=5e-5))))


@dataclass
class Inner(Settings):
    plain: int = 1
    text: str = setting("a", 'Two lines: "quoted" and x: y. ' + "word " * 30)


@dataclass
class Outer(Settings):
    inner: Inner = field(default_factory=Inner)
    last: list[int] = setting(list, "The last.")


def test_help_texts_stand_above_their_settings() -> None:
    values = {"inner": {"text": "a: # b"}, "last": [1, 2]}
    config = OmegaConf.merge(OmegaConf.structured(Outer), values)
    assert isinstance(config, DictConfig)
    lines = "\n".join(described(config)).splitlines()
    assert yaml.safe_load("\n".join(lines)) == OmegaConf.to_container(config)
    assert lines[lines.index("last:") - 1] == "# The last."
    place = lines.index("  text: 'a: # b'")
    assert lines[place - 2].startswith('  # Two lines: "quoted" and x: y. word')
    assert lines[place - 3] == "  plain: 1" and all(len(line) <= 96 for line in lines)


def test_a_choice_has_its_own_settings_explained(run: Run) -> None:
    outcome = run.succeeds("vit-train", "optim=muon", "data=folder", "data.root=x", "--help")
    shown = " ".join(line.strip("# ") for line in outcome.out.splitlines())
    for kind in (TrainConfig, MuonConfig, FolderConfig):
        for each in fields(kind):
            assert each.metadata.get("help", "") in shown, each.name
    # a field of a base of Muon's settings
    assert "Weight decay of linear and convolution weights" in shown


def test_every_setting_is_explained() -> None:
    kinds = all_kinds()
    assert len(kinds) > 25
    for kind in kinds:
        for each in fields(kind):
            part = is_dataclass(get_type_hints(kind)[each.name])
            chosen = each.name == "name" and hasattr(kind, "group") and kind.group in CHOSEN_BY_NAME
            assert each.metadata.get("help") or part or chosen, (kind.__name__, each.name)
            if otherwise := each.metadata.get("otherwise"):
                (stated,) = re.findall(r"null: ([\d.e-]+\d|\d)", each.metadata["help"])
                assert float(stated) == otherwise, (kind.__name__, each.name)
