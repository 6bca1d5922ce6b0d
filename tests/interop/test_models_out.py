"""Exported models answer the same in other libraries: `pytest -m interop`."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Run, write_images
from PIL import Image
from test_cli_tags import TRAIN, draw_squares
from test_docs import ROOT, blocks
from torch import Tensor

import vit_train
from interop.models import (
    DEPTH,
    SETTINGS,
    SIZE,
    logits_of,
)
from vit_train.trained.model import Trained

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("default"),  # of the other libraries
]
SMALL = [
    *SETTINGS,
    *("data.train_images=100", "data.test_images=70", "train.epochs=1", "optim.lr=0.01"),
    "hydra.run.dir=run",
]


def trained(run: Run, *settings: str) -> Trained:
    run.succeeds("vit-train", *SMALL, *settings)
    return vit_train.load("run")


def exported(run: Run, form: str, *settings: str) -> str:
    outcome = run.succeeds("vit-export", "ckpt=run", f"format={form}", *settings)
    said = outcome.out + outcome.err
    assert "the same top-1 on 256 of 256 random images, relative logit error" in said
    assert "the same top-1 on 70 of 70 test images, relative logit error" in said
    return said


def images(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(256, (count, 3, SIZE, SIZE), dtype=torch.uint8, generator=generator)


def our_logits(model: Trained, batch: Tensor) -> Tensor:
    mean, std = (torch.tensor(each).view(-1, 1, 1) for each in model.meta.statistics)
    return model.model((batch / 255 - mean) / std).detach()


ONNX = [
    ["model.kernels=scratch", "model.qk_norm=true", "model.registers=1"],
    ["model.kernels=fused", "model.head=gap", "model.positions=sincos_2d"],
    ["model.positions=relative", "model.head=token_mlp", "model.activation=gelu_tanh"],
    ["model.positions=rotary_2d", "model.embed_dim=12", "model.registers=2"],
    ["model.pre_norm=false", "model.stem=conv", "model.positions_at=layers"],
]


@pytest.mark.parametrize("settings", ONNX, ids=" ".join)
def test_onnx_gives_the_same_logits_at_every_batch_size(run: Run, settings: list[str]) -> None:
    import onnxruntime

    model = trained(run, *settings)
    exported(run, "onnx")
    session = onnxruntime.InferenceSession("run/export/model.onnx")
    assert session.get_inputs()[0].shape[0] == session.get_outputs()[0].shape[0] == "batch"
    for count in (1, 5, 64):
        (logits,) = session.run(None, {"images": images(count).numpy()})
        expected = our_logits(model, images(count))
        assert logits.shape == (count, 10) and expected.abs().max() > 0
        torch.testing.assert_close(torch.from_numpy(logits), expected, rtol=1e-4, atol=1e-5)
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == model.meta.classes
    assert json.loads(about["mean"]) == list(model.meta.statistics.mean)
    assert json.loads(about["config"])["model"]["depth"] == DEPTH
    card = Path("run/export/model.onnx.md").read_text(encoding="utf-8")
    assert ", ".join(model.meta.classes) in card


def test_onnx_of_a_cnn_and_of_normalized_images(run: Run) -> None:
    import onnxruntime

    quick = [each for each in SMALL if not each.startswith("model.")]
    run.succeeds("vit-train", "model=resnet", *quick)
    exported(run, "onnx", "normalize=false", "out=here/x.onnx")
    model = vit_train.load("run")
    batch = torch.randn(5, 3, SIZE, SIZE)
    session = onnxruntime.InferenceSession("here/x.onnx")
    (logits,) = session.run(None, {"images": batch.numpy()})
    expected = model.model(batch).detach()
    torch.testing.assert_close(torch.from_numpy(logits), expected, rtol=1e-4, atol=1e-5)


def test_onnx_of_tags_predicts_what_vit_predict_does(run: Run) -> None:
    import onnxruntime

    draw_squares()
    run.succeeds(*TRAIN)
    run.succeeds("vit-eval", "ckpt=run")  # chooses the thresholds
    run.succeeds("vit-export", "ckpt=run", "format=onnx")
    session = onnxruntime.InferenceSession("run/export/model.onnx")
    about = session.get_modelmeta().custom_metadata_map
    thresholds = json.loads(about["thresholds"])
    assert list(thresholds) == json.loads(about["classes"]) == ["blue", "green", "red"]
    assert about["problem_type"] == "multi_label_classification" and 0.5 not in thresholds.values()
    card = Path("run/export/model.onnx.md").read_text(encoding="utf-8")
    assert ", ".join(f"{name}: {least:.3f}" for name, least in thresholds.items()) in card
    assert "the same most probable tag on 40 of 40 test images" in card

    run.succeeds("vit-predict", "ckpt=run", "images=*.png", "out=p.jsonl")
    lines = [json.loads(line) for line in Path("p.jsonl").read_text(encoding="utf-8").splitlines()]
    pixels = np.stack([np.asarray(Image.open(line["image"])) for line in lines])
    (logits,) = session.run(None, {"images": pixels.transpose(0, 3, 1, 2)})
    for line, chances in zip(lines, 1 / (1 + np.exp(-logits.astype(float))), strict=True):
        named = dict(zip(thresholds, chances, strict=True))
        found = {name: chance for name, chance in named.items() if chance >= thresholds[name]}
        assert dict(line["top"]) == pytest.approx(found, abs=1e-5)
        assert line["probability"] == pytest.approx(chances.max(), abs=1e-5)


@pytest.mark.parametrize("positions", ["ramp", "dropkey"])
def test_onnx_of_a_model_with_parts_of_ones_own(
    run: Run, registries: None, monkeypatch: pytest.MonkeyPatch, positions: str
) -> None:
    code = "\n".join(blocks(ROOT / "docs/extending.md", "python"))
    Path("my_parts.py").write_text(code, encoding="utf-8")
    monkeypatch.setenv("VIT_TRAIN_IMPORT", "my_parts")
    own = [f"model.positions={positions}", "model.embed_dim=12", "model.activation=relu2"]
    run.succeeds("vit-train", *SMALL, *own)
    exported(run, "onnx")


def test_eight_bits_change_few_predictions_and_the_card_says_how_many(run: Run) -> None:
    trained(run, "train.epochs=3")
    said = run.succeeds("vit-export", "ckpt=run", "format=onnx_int8").said
    assert "70 test images, relative logit error" in said and "pre-processing" not in said
    run.succeeds("vit-export", "ckpt=run", "format=onnx")
    card = Path("run/export/model.int8.onnx.md").read_text(encoding="utf-8")
    found = re.search(r"same top-1 on (\d+) of 70 test images.*accuracy .*the original", card)
    assert found and int(found[1]) >= 60
    sizes = [Path(f"run/export/model{each}.onnx").stat().st_size for each in (".int8", "")]
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("model, normalize", [("tiny", True), ("resnet", False)])
def test_logits_in_8_bits_are_the_same_bits_alone_and_in_every_batch(
    run: Run, model: str, normalize: bool
) -> None:
    """Also beside images of one value, which would widen the range of a shared scale."""
    import onnxruntime

    settings = [each for each in SMALL if model == "tiny" or not each.startswith("model.")]
    run.succeeds("vit-train", f"model={model}", *settings)
    run.succeeds("vit-export", "ckpt=run", "format=onnx_int8", f"normalize={normalize}")
    batch = images(9).numpy() if normalize else torch.randn(9, 3, SIZE, SIZE).numpy()
    batch[0] = 0
    batch[1] = 255
    session = onnxruntime.InferenceSession("run/export/model.int8.onnx")
    (together,) = session.run(None, {"images": batch})
    (pair,) = session.run(None, {"images": batch[[4, 1]]})
    alone = [session.run(None, {"images": batch[[number]]})[0][0] for number in range(9)]
    assert together.shape == (9, 10) and np.array_equal(together, alone)
    assert np.array_equal(pair, together[[4, 1]])


TIMM: list[list[str]] = [
    [],
    ["model.norm_eps=1e-6", "model.qkv_bias=false", "model.qk_norm=true"],
    ["model.head=gap", "model.positions=sincos_2d", "model.registers=3"],
    ["model.layer_scale=0.1", "model.registers=2"],
    ["model.positions=none", "model.proj_bias=false", "model.mlp_bias=false"],
    ["model.proj_bias=false", "model.activation=gelu_tanh"],
    ["model.embed_dim=33", "model.mlp_dim=45", "model.positions=learned"],
]


@pytest.mark.parametrize("settings", TIMM, ids=" ".join)
def test_timm_opens_its_export(run: Run, settings: list[str]) -> None:
    import timm

    model = trained(run, *settings)
    exported(run, "timm", "out=theirs")
    theirs = timm.create_model("local-dir:theirs", pretrained=True).eval()
    assert theirs.pretrained_cfg["label_names"] == model.meta.classes
    mean, std = (torch.tensor(theirs.pretrained_cfg[k]).view(-1, 1, 1) for k in ("mean", "std"))
    batch = images(5)
    expected = our_logits(model, batch)
    torch.testing.assert_close(theirs((batch / 255 - mean) / std), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [[], ["model.norm_eps=1e-12", "model.qkv_bias=false", "model.proj_bias=false"]],
    ids=str,
)
def test_hugging_face_opens_its_export(run: Run, settings: list[str]) -> None:
    from transformers import AutoImageProcessor, AutoModelForImageClassification, pipeline

    model = trained(run, *settings)
    exported(run, "hf", "out=theirs")
    theirs = AutoModelForImageClassification.from_pretrained("theirs").eval()
    assert [theirs.config.id2label[n] for n in range(10)] == model.meta.classes
    batch = images(5)
    mean, std = (torch.tensor(each).view(-1, 1, 1) for each in model.meta.statistics)
    given = logits_of(theirs, (batch / 255 - mean) / std)
    torch.testing.assert_close(given, our_logits(model, batch), rtol=1e-4, atol=1e-5)

    smooth = np.linspace(0, 255, 60)[:, None, None] * np.linspace(0.2, 1, 3 * 40).reshape(1, 40, 3)
    photo = Image.fromarray(smooth.astype(np.uint8))
    pixels = AutoImageProcessor.from_pretrained("theirs")(photo, return_tensors="pt").pixel_values
    assert pixels.shape == (1, 3, SIZE, SIZE)
    assert (pixels[0] - model.preprocess(photo)).abs().max() < 0.05
    answer: Any = pipeline("image-classification", model="theirs")(photo)
    assert {each["label"] for each in answer} <= set(model.meta.classes)


@pytest.mark.parametrize("fit", ["crop", "stretch", "pad"])
def test_photos_are_made_square_there_as_here(run: Run, fit: str) -> None:
    import timm
    from transformers import AutoImageProcessor

    names = [f"{name}/{number}.png" for name in "ab" for number in range(10)]
    write_images("photos", names, size=(60, 40))
    folder = ["data=folder", "data.root=photos", f"data.fit={fit}"]
    run.succeeds("vit-train", *SETTINGS, *folder, "train.epochs=1", "hydra.run.dir=run")
    model = vit_train.load("run")
    smooth = np.linspace(0, 255, 60)[:, None, None] * np.linspace(0.2, 1, 3 * 40).reshape(1, 40, 3)
    photo = Image.fromarray(smooth.astype(np.uint8))
    ours = model.preprocess(photo)
    if fit == "pad":
        for form in ("timm", "hf"):
            run.fails(
                "not square nor data.fit=pad",
                "vit-export",
                "ckpt=run",
                f"format={form}",
            )
        return
    run.succeeds("vit-export", "ckpt=run", "format=timm", "out=for_timm")
    theirs = timm.create_model("local-dir:for_timm", pretrained=True)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(theirs))
    assert (transform(photo) - ours).abs().max() < 0.05
    run.succeeds("vit-export", "ckpt=run", "format=hf", "out=for_hf")
    processor = AutoImageProcessor.from_pretrained("for_hf")
    assert (processor(photo, return_tensors="pt").pixel_values[0] - ours).abs().max() < 0.05
    cards = [Path(f"for_{form}/README.md").read_text(encoding="utf-8") for form in ("timm", "hf")]
    assert all(("scales images before it crops" in card) == (fit == "crop") for card in cards)
