"""experiment=: each file states its cost and results, and they are true."""

import glob
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import mean

import pytest
import torch
from hydra import compose, initialize_config_dir

from vit_train.model.build import build, count_flops
from vit_train.model.config import ViTConfig
from vit_train.results.table import (
    ACCURACY,
    each_once,
    machine,
    minutes,
    read_groups,
    short_commit,
    tflop,
)
from vit_train.runs.config import CONF_DIR, TrainConfig, register_schemas, typed
from vit_train.tasks.make import make_task

ROOT = Path(__file__).parent.parent

FILES = sorted((CONF_DIR / "experiment").glob("*.yaml"))
each_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


@cache
def composed(experiment: str, *overrides: str) -> TrainConfig:
    register_schemas()
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        return typed(compose("train", [f"experiment={experiment}", *overrides]), TrainConfig)


@each_file
def test_it_is_a_valid_config(file: Path) -> None:
    composed(file.stem)


@each_file
def test_it_says_its_command_its_cost_and_what_comes_of_it(file: Path) -> None:
    comment = "\n".join(
        line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#")
    )
    assert f"vit-train experiment={file.stem}" in comment
    assert re.search(r"Cost:[^.]+(minutes|hours?)", comment)
    assert "Expected: " in comment and "Published: " in comment
    swept = "mode: MULTIRUN" in file.read_text(encoding="utf-8")
    assert swept == (f"vit-results outputs/{file.stem}" in comment)


def comment_of(file: Path) -> str:
    """The header of a recipe as one line of text."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))


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
        each_once(machine(stage, "gpu", "cpu") for stage in group.stages),
        each_once(run.get("date", "") for run in group.runs),
        each_once(map(short_commit, group.stages)),
        pattern,
    ]
    accuracy = ACCURACY.text(group.values("test", "final", "acc"))
    return f"{accuracy} % of the test images ({'; '.join(filter(None, facts))})"


@each_file
def test_what_it_expects_was_measured(file: Path) -> None:
    """Every figure is that of the committed summaries, and the text says of which."""
    comment = comment_of(file)
    patterns = re.findall(r"(docs/results/[^\s;)]+)\)", comment)
    pages = re.findall(r"docs/results\.md(#[\w-]+)", comment)
    assert patterns or pages or "not yet run" in comment
    for pattern in patterns:
        assert measured(pattern) in comment, measured(pattern)
        if file.stem != "quickstart":  # which is as fast as a machine allows
            (group,) = read_groups([ROOT / name for name in glob.glob(pattern, root_dir=ROOT)])
            used = {run["precision"] for run in group.runs}
            assert used == {composed(file.stem).precision}, "pin the precision of the figures"
    titles = re.findall(
        r"^#+ (.+)$", (ROOT / "docs/results.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    anchors = {"#" + re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in titles}
    assert set(pages) <= anchors


@pytest.mark.parametrize(
    "experiment, image_size, classes, parameters",
    [
        ("paper_example", 128, 3, 269_059),
        ("stl10_vit", 96, 10, 4_828_426),
        ("system_d_classifier", 32, 10, 809_354),
        ("vit_tiny_5k", 32, 10, 1_205_898),
        ("cnn_5k", 32, 10, 141_354),
        ("resnet_5k", 32, 10, 175_258),
    ],
)
def test_the_reference_systems_have_their_number_of_parameters(
    experiment: str, image_size: int, classes: int, parameters: int
) -> None:
    config = composed(experiment)
    with torch.device("meta"):
        task = make_task(config.task, config.model, (3, image_size, image_size), classes)
        model = task.build_model()
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_the_decoder_of_system_d_has_its_number_of_parameters_and_its_mask_token() -> None:
    config = composed("system_d_decoder")
    model = make_task(config.task, config.model, (3, 32, 32), 10).build_model()
    decoder = model.get_submodule("decoder")
    assert sum(parameter.numel() for parameter in decoder.parameters()) == 1_066_880
    assert not decoder.get_parameter("mask_token").any()


@pytest.mark.parametrize(
    "experiment, dropout, branch_dropout, pos_std",
    [
        ("paper_example", 0.1, 0, 1),
        ("stl10_vit", 0, 0.1, 0.02),
        ("system_d_classifier", 0, 0.1, 0.02),
        ("system_d_decoder", 0, 0.1, 0.02),
        ("vit_tiny_5k", 0, 0, 1),
    ],
)
def test_the_reference_systems_have_their_dropout_and_initialization(
    experiment: str, dropout: float, branch_dropout: float, pos_std: float
) -> None:
    model = composed(experiment).model
    assert isinstance(model, ViTConfig)
    assert (model.dropout, model.branch_dropout) == (dropout, branch_dropout)
    assert (model.init, model.cls_std, model.pos_std) == ("torch", 1, pos_std)


def test_the_protocol_of_system_e() -> None:
    for experiment, warmup in (("vit_tiny_5k", 5), ("cnn_5k", 3), ("resnet_5k", 3)):
        config = composed(experiment)
        assert (config.data.train_subset, config.data.test_subset) == (5000, 1000)
        assert (config.data.val, config.train.epochs) == ("test", 30)
        assert (config.optim.lr, config.optim.weight_decay) == (1e-3, 0.01)
        assert config.optim.warmup_epochs == warmup
        assert config.task.label_smoothing == 0.1


def test_the_protocol_of_system_d() -> None:
    for experiment, width in (("stl10_vit", 256), ("system_d_classifier", 128)):
        config = composed(experiment)
        assert (config.optim.lr, config.train.epochs, config.model.embed_dim) == (3e-4, 50, width)


def test_system_d_is_trained_without_additions() -> None:
    for experiment in ("system_d_classifier", "system_d_decoder"):
        config = composed(experiment)
        optim = config.optim
        assert optim.decay_all and optim.lr_every == "epoch" and optim.clip_norm is None
        assert optim.warmup_epochs == 0
    assert composed("system_d_classifier").task.label_smoothing == 0


@pytest.mark.parametrize(
    "model, experiment", [("tiny", "vit_tiny_5k"), ("cnn", "cnn_5k"), ("resnet", "resnet_5k")]
)
def test_data_efficiency_has_the_recipes_of_system_e(model: str, experiment: str) -> None:
    published = composed(experiment)
    ours = composed("data_efficiency", f"experiment/system_e={model}", "experiment/images=5k")
    assert ours.data == replace(published.data, val="split", test_subset=None)
    optim = replace(ours.optim, warmup_epochs=published.optim.warmup_epochs)
    assert replace(ours, data=published.data, optim=optim) == published


def test_data_efficiency_takes_equally_many_steps() -> None:
    files = sorted((CONF_DIR / "experiment/images").glob("*.yaml"))
    seen = {}
    for file in files:
        config = composed("data_efficiency", f"experiment/images={file.stem}")
        assert file.stem == f"{config.data.train_subset // 1000}k"
        seen[file.stem] = config.data.train_subset * config.train.epochs
        assert f"{seen[file.stem]:,} images seen" in file.read_text(encoding="utf-8")
        warm_up = config.optim.warmup_epochs * (config.data.train_subset // 64)
        assert abs(warm_up / 390 - 1) < 0.04, file
    assert all(abs(images / 150_000 - 1) < 0.07 for images in seen.values()), seen
    sweep = (CONF_DIR / "experiment/data_efficiency.yaml").read_text(encoding="utf-8")
    (swept,) = re.findall(r"experiment/images: (\S+,\S+)", sweep)
    assert set(swept.split(",")) == set(seen)


@pytest.mark.parametrize(
    "experiment, images, size, parameters, tflop",
    [
        ("cifar10_vit", 45_000, 32, 1.3e6, 610),
        ("cifar10_conv", 45_000, 32, 1.3e6, 610),
        ("cifar10_5k", 5_000, 32, 1.3e6, 75),
        ("stl10_tiny", 4_500, 96, 1.3e6, 900),
        ("clock_75_cpu", 50_000, 32, 1.3e6, 125),
        ("clock_90", 50_000, 32, 10e6, 4_000),
        ("clock_94", 50_000, 32, 10e6, 34_000),
        ("cifar10_vit_gpu", 45_000, 32, 10e6, 60_000),
        ("cifar10_conv_gpu", 45_000, 32, 4e6, 32_000),
        ("stl10_gpu", 4_500, 96, 4e6, 17_000),
    ],
)
def test_a_recipe_keeps_to_its_budget(
    experiment: str, images: int, size: int, parameters: float, tflop: float
) -> None:
    config = composed(experiment)
    shape = (3, size, size)
    flops = count_flops(config.model, shape, 10).training
    assert images * config.train.epochs * flops / 1e12 <= tflop
    with torch.device("meta"):
        model = build(config.model, shape, 10)
    assert sum(parameter.numel() for parameter in model.parameters()) < parameters
