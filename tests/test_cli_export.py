"""vit-export: what is written answers the same, and what cannot be written is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import SMALL, Run, SmallRun
from safetensors import safe_open

import vit_train
from vit_train.base.reading import read_json
from vit_train.base.writing import write_json
from vit_train.interop import export as exporting
from vit_train.interop import formats
from vit_train.interop.formats import deployed
from vit_train.interop.pretrained import pretrained
from vit_train.model.build import build
from vit_train.model.config import CnnConfig, ModelConfig, ViTConfig
from vit_train.runs.paths import FOLDER
from vit_train.runs.trained import Trained
from vit_train.tasks.config import ReconstructConfig
from vit_train.tasks.make import make_task
from vit_train.tasks.task import Task

SAID = "the same top-1 on 256 of 256 random images, logits to"


def test_a_program_of_torch_answers_at_every_batch_size(run: Run, small_run: SmallRun) -> None:
    model, meta = vit_train.load(small_run("finished"))
    outcome = run.succeeds("vit-export", "ckpt=run", "format=torch")
    assert SAID in outcome.out and "60 of 60 test images" in outcome.out
    about = {"vit_train.json": ""}
    program = torch.export.load("run/export/model.pt2", extra_files=about).module()
    mean, std = (torch.tensor(each).view(-1, 1, 1) for each in meta.statistics)
    for count in (1, 5, 64):
        images = torch.randint(256, (count, 3, 32, 32), dtype=torch.uint8)
        expected = model((images / 255 - mean) / std)
        torch.testing.assert_close(program(images), expected, rtol=1e-4, atol=1e-5)
    assert json.loads(about["vit_train.json"])["classes"] == meta.classes
    card = Path("run/export/model.pt2.md").read_text(encoding="utf-8")
    assert all(words in card for words in (SAID, "test images, final weights", "torch.export.load"))


@pytest.fixture
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "RANDOM_IMAGES", 8)


def test_safetensors_are_weights_to_start_from(run: Run, few_images: None) -> None:
    outcome = run.succeeds(
        "vit-export", "ckpt=builtin:cifar10", "format=safetensors", "out=x.safetensors"
    )
    assert "on 8 of 8 random images" in outcome.out
    assert "not checked on test images: cannot read CIFAR-10" in outcome.out
    model, meta = vit_train.load("builtin:cifar10")
    found = pretrained("x.safetensors", ViTConfig())
    assert all(torch.equal(value, found.state[key]) for key, value in model.state_dict().items())
    assert (found.classes, found.statistics) == (meta.classes, meta.statistics)
    with safe_open("x.safetensors", framework="pt") as file:
        about = json.loads(file.metadata()["vit_train"])
    assert about["images_seen"] == meta.images_seen and "/" not in about["config"]["data"]["root"]


@pytest.mark.parametrize("form, source", [("timm", "builtin:cifar10"), ("hf", "run")])
def test_a_folder_for_a_library_is_read_back(
    run: Run,
    small_run: SmallRun,
    form: str,
    source: str,
    few_images: None,
) -> None:
    """Positions that are no table there become one; the bits are the same."""
    small_run("finished")
    outcome = run.succeeds("vit-export", f"ckpt={source}", f"format={form}", "out=theirs")
    assert "random images, logits to 0.0e+00" in outcome.out
    assert "## Use" in Path("theirs/README.md").read_text(encoding="utf-8")
    model, meta = vit_train.load(source)
    found = pretrained("theirs", ViTConfig())
    assert found.classes == meta.classes and found.config.num_heads == model.config.num_heads
    assert torch.equal(found.state["pos_embed.0.weight"], model.pos_embed[0]())


def test_what_a_model_lacks_is_written_as_none_or_as_zeros(run: Run, few_images: None) -> None:
    lacks = ["model.positions=none", "model.proj_bias=false", "model.mlp_bias=false"]
    run.succeeds("vit-train", *SMALL, *lacks, "train.epochs=1", "hydra.run.dir=run")
    outcome = run.succeeds("vit-export", "ckpt=run", "format=timm", "out=theirs")
    assert "random images, logits to 0.0e+00" in outcome.out
    config = read_json(Path("theirs/config.json"))
    assert config["model_args"]["pos_embed"] == "none"
    assert not pretrained("theirs", ViTConfig()).state["blocks.0.attn.proj.bias"].any()


CANNOT = [
    (CnnConfig(), "timm", "model.name=cnn: choose one of: onnx, torch"),
    (CnnConfig(), "safetensors", "model.name=cnn: choose one of: onnx, torch"),
    (
        ViTConfig(positions="relative", pre_norm=False),
        "hf",
        "model.pre_norm=False, model.positions=relative: choose one of: onnx, torch, safetensors",
    ),
    (
        ViTConfig(mlp_bias=False, final_norm=False),
        "timm",
        "model.final_norm=False: choose one",
    ),
]


@pytest.mark.parametrize("config, form, words", CANNOT, ids=str)
def test_what_a_format_cannot_hold_is_refused_with_those_that_can(
    config: ModelConfig, form: str, words: str
) -> None:
    _, meta = vit_train.load("builtin:cifar10")
    meta = replace(meta, config=replace(meta.config, model=config))
    model = Trained(build(config, meta.image_shape, 10), meta)
    with pytest.raises(ValueError, match=f"format={form} has no place for {words}"):
        exporting.require_format_holds(deployed(model, True), form)


def test_only_classifiers_are_exported(run: Run) -> None:
    small = [*SMALL, "model.head=gap", "train.max_minutes=1e-9", "hydra.run.dir=run"]
    run.succeeds("vit-train", *small)
    run.fails(
        "format=hf has no place for model.head=gap: ",
        "vit-export",
        "ckpt=run/checkpoints/last.safetensors",
        "format=hf",
    )
    model, meta = vit_train.load("builtin:cifar10")
    task: Task = make_task(ReconstructConfig(), meta.config.model, meta.image_shape, 10)
    with pytest.raises(ValueError, match="only classifiers are exported"):
        deployed(Trained(model, replace(meta, task=task)), True)


@pytest.mark.parametrize("form, out", [("safetensors", "x.safetensors"), ("hf", "theirs")])
def test_an_export_that_answers_otherwise_is_not_kept(
    run: Run,
    small_run: SmallRun,
    form: str,
    out: str,
    few_images: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_run("finished")
    chosen = formats.FORMATS_BY_NAME[form]
    off = replace(chosen, open=lambda *what: lambda images: chosen.open(*what)(images) * 1.001)
    monkeypatch.setitem(formats.FORMATS_BY_NAME, form, off)
    Path("old").mkdir()
    if form == "hf":
        refused = run("vit-export", "ckpt=run", "format=hf", "out=old")
        assert refused.status == 1 and "old exists already: remove it" in refused.err
    before = set(Path().iterdir())
    outcome = run("vit-export", "ckpt=run", f"format={form}", f"out={out}")
    assert outcome.status == 1 and set(Path().iterdir()) == before
    assert "the file was deleted: the same top-1 on 8 of" in outcome.err


@pytest.mark.parametrize("form", ["timm", "hf"])
def test_an_activation_that_a_library_lacks_is_refused(
    form: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of one's own may add one."""
    activation = ViTConfig.__dataclass_fields__["activation"]
    choices = {"choices": ("gelu", "gelu_tanh", "silu")}
    monkeypatch.setattr(activation, "metadata", choices)
    chosen = [*SMALL, "train.epochs=1", "model.activation=silu"]
    run.succeeds("vit-train", *chosen, "hydra.run.dir=run")
    outcome = run("vit-export", "ckpt=run", f"format={form}")
    assert outcome.status == 1 and outcome.err == (
        f"vit-export: format={form} has no place for model.activation=silu: choose one of: "
        "onnx, torch, safetensors\n"
    )


def test_bad_settings_are_refused_at_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting.util, "find_spec", lambda package: None)
    for settings, words in {
        "format=tflite": "format=tflite must be one of: onnx, torch, safetensors, timm, hf",
        "format=hf normalize=false": "normalize=false is for format=onnx and torch",
        "format=torch out=x.bin": "out=x.bin must end in .pt2 for format=torch",
        "format=onnx": "needs onnx, onnxscript, onnxruntime: pip install -e '.[export]'",
        "format=torch": "no checkpoint at nowhere",
    }.items():
        run.fails(words, "vit-export", "ckpt=nowhere", *settings.split())


def test_a_checkpoint_is_never_replaced_by_its_export(run: Run) -> None:
    shutil.copy(FOLDER / "cifar10.safetensors", "model.safetensors")
    before = Path("model.safetensors").read_bytes()
    arguments = ["ckpt=model.safetensors", "format=safetensors", "out=./model.safetensors"]
    run.fails("is the checkpoint itself", "vit-export", *arguments)
    assert Path("model.safetensors").read_bytes() == before


def test_answers_that_differ_by_rounding_are_the_same_class() -> None:
    expected = torch.tensor([[1.0, 1.0 - 1e-6, 0.0], [2.0, 0.0, 1.0]])
    rounded = expected + torch.tensor([[-2e-6, 0, 0], [0, 0, 0]])
    assert exporting.agreement(expected, rounded) == (2, pytest.approx(1e-6, rel=0.1))
    assert exporting.agreement(expected, expected) == (2, 0)
    assert exporting.agreement(expected, expected.flip(1)) == (0, 0.5)
    for other in (torch.nan, torch.inf):
        _, difference = exporting.agreement(expected, torch.full((2, 3), other))
        assert difference > 1e30


def test_a_card_has_the_results_of_its_run(tmp_path: Path) -> None:
    exported: Any = SimpleNamespace(path=tmp_path / "checkpoints/best.safetensors")
    assert exporting.results(exported) == []
    result = {"acc": 0.5, "acc_interval_95": [0.4, 0.6], "count": 80}
    summary = {"command": "vit-train seed=1", "commit": "abc", "precision": "bf16"}
    write_json(tmp_path / "summary.json", summary | {"test": {"best": result}})
    card = exporting.results(exported)
    assert "Trained by `vit-train seed=1` (commit abc)." in card
    assert "| test images, best weights | bf16 | 50.00% | 40.00% to 60.00% | 80 |" in card
