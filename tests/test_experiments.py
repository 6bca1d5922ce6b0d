"""experiment=: each file states its cost and results, and they are true."""

import glob
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import mean

import pytest
import torch
from test_docs import ROOT, anchors

from benchmarks.turn import composed
from vit_train.config.run import CONF_DIR, TrainConfig
from vit_train.evaluate.cells import (
    ACCURACY,
    each_once,
    machine_fact,
    minutes,
    short_commit,
    tflop,
)
from vit_train.evaluate.results import read_groups
from vit_train.tasks import count_flops, make_task

FILES = sorted((CONF_DIR / "experiment").glob("*.yaml"))
each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


@cache
def recipe(name: str, *overrides: str) -> TrainConfig:
    return composed([f"experiment={name}", *overrides])


def comment_of(file: Path) -> str:
    """The header of a recipe as one line of text."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))


@each_file
def test_a_recipe_states_its_command_cost_and_result(file: Path) -> None:
    recipe(file.stem)
    comment = comment_of(file)
    assert f"vit-train experiment={file.stem}" in comment
    assert re.search(r"Cost:.+(seconds|minutes|hours?).+Expected:", comment)
    assert "Expected: " in comment and "Published: " in comment
    swept = "mode: MULTIRUN" in file.read_text(encoding="utf-8")
    assert swept == (f"vit-results outputs/{file.stem}" in comment)


def measured(pattern: str) -> str:
    """The words of a header on the runs with these summaries."""
    files = [Path(file) for file in sorted(glob.glob(pattern, root_dir=ROOT))]
    (group,) = read_groups([ROOT / file for file in files])
    seeds = ", ".join(str(run["config"]["seed"]) for run in group.runs)
    facts = [
        f"{'seeds' if len(group.runs) > 1 else 'seed'} {seeds}",
        f"{mean(group.values('images_seen')):,.0f} images seen",
        f"{tflop(group)} TFLOP" if tflop(group) else "",
        f"{minutes(group.values('seconds'))} minutes a run",
        each_once(machine_fact(stage, "gpu", "cpu") for stage in group.stages),
        each_once(run.get("date", "") for run in group.runs),
        each_once(map(short_commit, group.stages)),
        pattern,
    ]
    accuracy = ACCURACY.text(group.values("test", "final", "acc"))
    return f"{accuracy} % of the test images ({'; '.join(filter(None, facts))})"


@each_file
def test_a_recipe_states_measured_results(file: Path) -> None:
    """Every figure is that of the committed summaries, and the text says of which."""
    comment = comment_of(file)
    patterns = re.findall(r"(docs/results/[^\s;)]+)\)", comment)
    pages = re.findall(r"docs/results\.md#([\w-]+)", comment)
    assert patterns or pages or "not yet run" in comment
    for pattern in patterns:
        assert measured(pattern) in comment, measured(pattern)
        if file.stem != "quickstart":  # which is as fast as a machine allows
            (group,) = read_groups([ROOT / name for name in glob.glob(pattern, root_dir=ROOT)])
            used = {run["precision"] for run in group.runs}
            assert used == {recipe(file.stem).precision}, "pin the precision of the figures"
    assert set(pages) <= anchors(ROOT / "docs/results.md")


def parameters(config: TrainConfig, image_size: int, classes: int = 10) -> int:
    with torch.device("meta"):
        task = make_task(config.task, config.model, (3, image_size, image_size), classes)
        return sum(parameter.numel() for parameter in task.build_model().parameters())


# Of the reference systems: image size, classes, number of parameters, and what they set.
TORCH = {"init": "torch", "cls_std": 1}
SYSTEM_D = {
    "lr": 3e-4,
    "decay_all": True,
    "lr_every": "epoch",
    "clip_norm": None,
    "warmup_epochs": 0,
}
SYSTEM_E = {
    "train_subset": 5000, "test_subset": 1000, "val": "test", "epochs": 30, "lr": 1e-3,
    "weight_decay": 0.01, "label_smoothing": 0.1, "warmup_epochs": 3,
}  # fmt: skip
NO_DROPOUT = TORCH | {"dropout": 0, "branch_dropout": 0, "pos_std": 1}
BRANCHES = TORCH | {"dropout": 0, "branch_dropout": 0.1, "pos_std": 0.02}
REFERENCES: dict[str, tuple[int, int, int, dict[str, object]]] = {
    "paper_example": (128, 3, 269_059, NO_DROPOUT | {"dropout": 0.1}),
    "stl10_vit": (96, 10, 4_828_426, BRANCHES | {"lr": 3e-4, "epochs": 50, "embed_dim": 256}),
    "system_d_classifier": (
        *(32, 10, 809_354),
        BRANCHES | SYSTEM_D | {"epochs": 50, "embed_dim": 128, "label_smoothing": 0},
    ),
    "system_d_decoder": (32, 10, 1_881_136, BRANCHES | SYSTEM_D),
    "vit_tiny_5k": (32, 10, 1_205_898, NO_DROPOUT | SYSTEM_E | {"warmup_epochs": 5}),
    "cnn_5k": (32, 10, 141_354, SYSTEM_E),
    "resnet_5k": (32, 10, 175_258, SYSTEM_E),
}


@pytest.mark.parametrize("experiment", REFERENCES)
def test_the_reference_systems_are_as_published(experiment: str) -> None:
    size, classes, count, published = REFERENCES[experiment]
    config = recipe(experiment)
    settings = {}
    for part in (config.task, config.data, config.train, config.optim, config.model):
        settings |= vars(part)
    assert settings | published == settings
    assert parameters(config, size, classes) == count


@pytest.mark.parametrize(
    "model, experiment", [("tiny", "vit_tiny_5k"), ("cnn", "cnn_5k"), ("resnet", "resnet_5k")]
)
def test_data_efficiency_has_the_recipes_of_system_e(model: str, experiment: str) -> None:
    published = recipe(experiment)
    ours = recipe("data_efficiency", f"experiment/system_e={model}", "experiment/images=5k")
    assert ours.data == replace(published.data, val="split", test_subset=None)
    optim = replace(ours.optim, warmup_epochs=published.optim.warmup_epochs)
    ours = replace(ours, data=published.data, optim=optim, precision=published.precision)
    assert ours == published


@pytest.mark.parametrize(
    "experiment, images, size, most, tflop",
    [
        ("cifar10_vit", 45_000, 32, 1.3e6, 450),
        ("cifar10_conv", 45_000, 32, 1.3e6, 1_220),
        ("cifar10_5k", 5_000, 32, 1.3e6, 75),
        ("stl10_tiny", 4_500, 96, 1.3e6, 455),
        ("clock_75_cpu", 50_000, 32, 1.3e6, 125),
        ("clock_90", 50_000, 32, 10e6, 2_700),
        ("clock_94", 50_000, 32, 10e6, 34_000),
        ("cifar10_vit_gpu", 50_000, 32, 10e6, 133_000),
        ("cifar10_overlap_gpu", 50_000, 32, 10e6, 134_000),
        ("cifar10_conv_gpu", 50_000, 32, 4e6, 35_000),
        ("stl10_gpu", 4_500, 96, 4e6, 17_000),
    ],
)
def test_a_recipe_keeps_to_its_budget(
    experiment: str, images: int, size: int, most: float, tflop: float
) -> None:
    config = recipe(experiment)
    flops = count_flops(config.task, config.model, (3, size, size), 10).training
    assert images * config.train.epochs * flops / 1e12 <= tflop
    assert parameters(config, size) < most
